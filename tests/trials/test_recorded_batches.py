"""Batches that torch's loaders gave before are handed out again."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gapless.records.finding import Finding
from gapless.trials.recorded_batches import RecordedBatches


class Numbers(Dataset):
    """Counts how many items were made."""

    def __init__(self, size):
        self.size = size
        self.num_made = 0

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        self.num_made += 1
        return {"x": torch.full((2,), float(number)), "name": str(number)}


class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10_000.0))


@pytest.fixture
def variant():
    found = RecordedBatches()
    yield found
    found.close()


def settle(variant, loader):
    """Start, and take batches until they are recorded ones; return the iterator."""
    variant.start(lambda optimizer: None)
    batches = iter(loader)
    for _ in range(100):
        next(batches)
        if variant.is_settled or variant.refusal:
            return batches
    raise AssertionError("never settled")


def test_recorded_batches_are_handed_out_in_turn(variant):
    """The loader makes nothing meanwhile, and batches have the values that it gave."""
    data = Numbers(1000)
    batches = settle(variant, DataLoader(data, batch_size=4))
    before = data.num_made

    taken = [next(batches) for _ in range(40)]

    assert data.num_made == before
    assert [batch["name"][0] for batch in taken[:16]] == [
        str(4 * step) for step in (*range(1, 16), 0)
    ]
    assert torch.equal(taken[0]["x"], torch.tensor([4.0, 5.0, 6.0, 7.0])[:, None].expand(4, 2))
    assert variant.details == ("16 batches were handed out 41 times.",)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_has_as_many_batches(variant, num_workers):
    """Each recorded batch takes the place of one, in windows with it and without."""
    loader = DataLoader(Numbers(200), batch_size=2, num_workers=num_workers)
    rest = settle(variant, loader)
    num_taken = rest._num_yielded

    for step, _ in enumerate(rest):
        num_taken += 1
        if step == 20:
            variant.stop()
        if step == 40:
            variant.start(lambda optimizer: None)

    assert num_taken == 100
    assert variant.num_steps_to_recover == 2 * num_workers
    variant.stop()
    assert len(list(loader)) == 100


def test_a_loader_may_be_made_anew_in_each_epoch(variant):
    """Batches of the epoch before take the places of those of a loader like it."""
    settle(variant, DataLoader(Numbers(1000), batch_size=4))
    data = Numbers(1000)

    batches = list(DataLoader(data, batch_size=4))
    variant.close()

    assert (len(batches), data.num_made) == (250, 0)
    assert variant.details == ("16 batches were handed out 251 times.",)


def test_scripts_may_take_batches_apart(variant):
    """What is taken out of a batch, or put into it, is not missing in the next one like it."""
    batches = settle(variant, DataLoader(Numbers(1000), batch_size=4))

    for _ in range(40):
        batch = next(batches)
        assert sorted(batch) == ["name", "x"]
        batch["x"] = batch.pop("x") + 1
        batch["name"].clear()

    assert variant.refusal == ""


def test_batches_that_are_changed_in_place_are_refused(variant):
    """A script that writes into a batch would find it changed, and never does."""
    batches = settle(variant, DataLoader(Numbers(1000), batch_size=4))

    for _ in range(40):
        batch = next(batches)
        assert batch["x"][:, 0].tolist() == [float(name) for name in batch["name"]]
        batch["x"].add_(1)

    assert variant.refusal == "the script changes its batches in place"


class Unreadable:
    def __init__(self, items):
        self.items = items

    def __reduce__(self):
        return Unreadable, ()


def test_batches_that_cannot_be_made_again_are_refused(variant):
    """The script gets its batches as ever, and the trial says why there is nothing to measure."""
    loader = DataLoader(Numbers(1000), batch_size=4, collate_fn=Unreadable)
    batches = settle(variant, loader)

    assert len(next(batches).items) == 4
    assert variant.refusal.startswith("a batch cannot be copied: TypeError: ")


def test_a_script_without_a_loader_is_refused(variant):
    """Where no loader of torch gives batches there is nothing to record."""
    variant.start(lambda optimizer: None)

    while not variant.refusal:
        assert not variant.is_settled

    assert variant.refusal == "no loader of torch gave a batch in that time"


def test_data_without_a_length(variant):
    """Batches of an endless data set are recorded as well, and it is said what became of its epochs."""
    batches = settle(variant, DataLoader(Endless(), batch_size=4))
    taken = [next(batches)[0].item() for _ in range(3)]

    assert taken == [4.0, 8.0, 12.0]
    assert "no length" in variant.details[1]


def test_it_is_for_scripts_that_wait_for_their_loader(variant):
    """The finding of a slow loader asks for it."""
    loader, read = (
        Finding(code=code, site=None, call="", per_step=1, cause="", mend="")
        for code in ("GAP016", "GAP001")
    )

    assert variant.is_for([read, loader])
    assert not variant.is_for([read])
