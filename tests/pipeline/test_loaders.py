"""Parts of loaders."""

from __future__ import annotations

from itertools import islice

from torch.utils.data import DataLoader

from gapless.pipeline.loaders import LoaderPart, num_workers


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
