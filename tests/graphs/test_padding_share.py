"""The share of calls that padding would have made replays."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as st

from gapless.graphs import padding_share
from gapless.graphs.padding_share import MULTIPLES, KindsSeen, padding_shares
from gapless.pipeline.tree.flatten import flatten


BEFORE = 3

# Two structures, each with two tensors: of two dimensions and of one.
sizes = st.integers(0, 200)
kinds = st.tuples(st.sampled_from("ab"), st.tuples(st.tuples(sizes, sizes), st.tuples(sizes)))
tables = st.dictionaries(kinds, st.integers(1, 20), max_size=12)


def brute_force(table, multiple):
    """Return the share, found by padding every call one by one."""
    calls = [kind for kind, count in table.items() for _ in range(count)]
    num_seen, num_replays = Counter(), 0
    for structure, shapes in calls:
        padded = []
        for tensor, shape in enumerate(shapes):
            for dimension, size in enumerate(shape):
                seen = {other[tensor][dimension] for name, other in table if name == structure}
                while len(seen) > 1 and size % multiple:
                    size += 1
                padded.append(size)
        num_seen[structure, *padded] += 1
        num_replays += num_seen[structure, *padded] > BEFORE
    return num_replays / len(calls)


@given(tables)
def test_shares_are_those_of_a_loop_over_padded_calls(table):
    """Padded one by one, every call after the first three of its kind is a replay."""
    found = padding_shares(table, num_replays=0, num_before=BEFORE)

    assert all(share == pytest.approx(brute_force(table, of)) for of, share in found.items())
    structures = [structure for structure, _ in table]
    assert bool(found) == (len(structures) > len(set(structures)))


@given(tables, st.integers(0, 1000))
def test_shares_lie_between_what_was_replayed_and_all(table, num_replays):
    """Padding takes no replay away, and further calls of kinds that were replayed are replays."""
    found = padding_shares(table, num_replays=num_replays, num_before=BEFORE)

    num_calls = sum(table.values()) + num_replays
    assert all(num_replays / num_calls <= share <= 1 for share in found.values())


@given(tables)
def test_padding_to_a_multiple_of_a_multiple_gives_no_less(table):
    """8, 16 and 64 divide one another, so what one makes alike the next does too."""
    found = padding_shares(table, num_replays=0, num_before=BEFORE)

    assert list(found.values()) == sorted(found.values())
    assert list(found) in ([], list(MULTIPLES))


def test_kinds_tell_structures_dtypes_and_plain_values_apart():
    """Padding makes none of these alike."""
    seen = KindsSeen()
    for value in (torch.zeros(3), torch.zeros(3).int(), (torch.zeros(3), 1), (torch.zeros(3), 2)):
        seen.add(flatten(value))
        seen.add(flatten(value))

    assert list(seen.counts.values()) == [2, 2, 2, 2]
    assert padding_shares(seen.counts, num_replays=0, num_before=BEFORE) == {}


def test_the_table_of_kinds_is_bounded(monkeypatch):
    """Kinds beyond the bound are not counted, and known ones still are."""
    monkeypatch.setattr(padding_share, "_MAX_KINDS", 4)
    seen = KindsSeen()
    for length in [*range(10), 0]:
        seen.add(flatten(torch.zeros(length)))

    assert list(seen.counts.values()) == [2, 1, 1, 1]
