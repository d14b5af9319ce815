"""Parts of loaders, and single epochs of them."""

from __future__ import annotations

import multiprocessing
from itertools import islice

from torch.utils.data import DataLoader

from gapless.pipeline.loaders import EpochOf, LoaderPart, has_fresh_memory, num_workers


def test_a_part_has_its_loaders_workers():
    """Plan `auto` can tell how many would do, whatever takes the batches."""
    loader = DataLoader(list(range(4)), batch_size=1, num_workers=2)

    assert LoaderPart(loader, iter).num_workers == 2
    assert LoaderPart(LoaderPart(loader, iter), iter).num_workers == 2
    assert LoaderPart([1, 2], iter).num_workers == num_workers((1, 2)) == 0
    assert num_workers(iter([1])) is None


def test_a_part_can_be_gone_through_again():
    """Each pass takes anew what its function takes."""
    part = LoaderPart([1, 2, 3], lambda loader: islice(loader, 2))

    assert [list(part), list(part)] == [[1, 2], [1, 2]]


def test_an_epoch_gives_the_first_batches_and_has_its_loaders_workers():
    """The epoch of a list starts no workers, so it has no start of its own."""
    with EpochOf([1, 2, 3], 2) as batches:
        found = list(batches)

    assert (found, batches.num_workers, batches.start_ms) == ([1, 2], 0, 0.0)


def test_an_epoch_ends_the_workers_that_it_started():
    """Workers end with the block, also if not all batches were taken; their start was timed."""
    loader = DataLoader(list(range(4)), batch_size=1, num_workers=1)

    with EpochOf(loader, 3) as batches:
        next(iter(batches))
        assert len(multiprocessing.active_children()) == 1

    assert multiprocessing.active_children() == []
    assert batches.num_workers == 1
    assert batches.start_ms > 0.0


class OwnLoader(DataLoader):
    """A loader that may do anything between its workers and the loop."""


def test_few_loaders_are_known_to_leave_memory_alone():
    """Worker processes and torch's collate function make new memory, and a list has its own."""
    data = list(range(4))

    assert has_fresh_memory(DataLoader(data, batch_size=2))
    assert has_fresh_memory(DataLoader(data, num_workers=1, collate_fn=list))
    assert not has_fresh_memory(DataLoader(data, collate_fn=list))
    assert not has_fresh_memory(DataLoader(data, batch_size=None))
    assert not has_fresh_memory(OwnLoader(data, num_workers=1))
    assert has_fresh_memory(data)
    assert has_fresh_memory(tuple(data))
    assert not has_fresh_memory(iter(data))
    assert not has_fresh_memory(type("Own", (list,), {})(data))
