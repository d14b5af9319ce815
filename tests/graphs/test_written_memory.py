"""Whether a batch lies where a graph writes is known to the byte."""

from __future__ import annotations

import pytest
import torch

from gapless.graphs.replay.written_memory import WrittenMemory


@pytest.fixture
def bank():
    return torch.zeros(10, 4)


def test_a_view_of_what_is_written_is_held(bank):
    """A view that shares one row with what is written is found."""
    assert WrittenMemory([bank[3:6]]).holds_any([torch.zeros(4), bank[5:9]])


def test_other_rows_of_the_same_storage_are_not_held(bank):
    """A queue may write some of its rows while others are the batch."""
    assert not WrittenMemory([bank[3:6]]).holds_any([bank[:3], bank[6:]])


def test_rows_between_two_that_are_written_are_not_held(bank):
    """Several pieces of one storage are told apart."""
    written = WrittenMemory([bank[:2], bank[8:]])

    assert not written.holds_any([bank[2:8]])
    assert written.holds_any([bank[1:8]])


def test_memory_of_its_own_is_not_held(bank):
    """Nearly every batch lies nowhere else, and nothing may be written at all."""
    assert not WrittenMemory([bank]).holds_any([bank.clone()])
    assert not WrittenMemory().holds_any([bank])


def test_a_batch_without_one_piece_of_memory_is_not_held(bank):
    """A sparse batch and an empty one have no address to ask for."""
    assert not WrittenMemory([bank]).holds_any([torch.eye(3).to_sparse(), bank[:0]])
