"""Loops that hand batches and losses on in ways that few loops do."""

from __future__ import annotations

import copy
import io
import pickle
from typing import NamedTuple, TypedDict

import pytest
import torch

import gapless
from hazards.harness import HOLDS, REAL, case


class Row(TypedDict):
    """A batch whose keys are known to the type checker alone."""

    x: torch.Tensor
    ids: list[int]


class Pair(NamedTuple):
    """A batch with a default and a property."""

    x: torch.Tensor
    y: torch.Tensor | None = None

    @property
    def both(self):
        return self.x if self.y is None else self.x + self.y


@case("Batches are typed dicts and named tuples with a default and a property.")
def typed_batches(place):
    def batches():
        for number in range(6):
            x = place.numbers(number, 8)
            yield Row(x=x, ids=[number]), Pair(x), Pair(x, place.pinned(x * 2))

    return [(row, one.both, two.both, two) for row, one, two in place.prefetch(batches())]


@case("Batches are copied, pickled and saved in the middle of the loop.", devices=REAL)
def copied_and_pickled(place):
    kept = []
    for batch in place.prefetch([{"x": place.numbers(n, place.medium)} for n in range(5)]):
        place.busy()
        file = io.BytesIO()
        torch.save(batch, file)
        file.seek(0)
        kept += [copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), torch.load(file)]
        batch["x"].zero_()
    return kept


@case("A list holds itself: the error says so, and does not hang.", verdict=HOLDS)
def list_that_holds_itself(place):
    batch = [place.numbers(0, 4)]
    batch.append(batch)
    with pytest.raises((RecursionError, gapless.BatchError)):
        list(place.prefetch([batch]))
    assert len(list(place.prefetch([place.numbers(1, 4)]))) == 1


@case("A loss loses its memory right after it was added.", devices=REAL)
def memory_of_a_loss_goes(place):
    losses = place.losses()
    for number in range(20):
        place.busy()
        loss = place.scalar(1.5 * number)
        losses.add(loss)
        loss.untyped_storage().resize_(0)
        place.scalar(-1.0)
    return losses.mean()
