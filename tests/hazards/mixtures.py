"""Loops that hand batches and losses on in ways that few loops do."""

from __future__ import annotations

import asyncio
import copy
import io
import itertools
import pickle
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import NamedTuple, TypedDict

import pytest
import torch
from torch import nn

import gapless
from hazards.harness import HOLDS, REAL, case


@dataclass
class Measured:
    """A batch with a field that no argument sets, and one argument that is no field."""

    x: torch.Tensor
    scale: InitVar[float] = 1.0
    scaled: torch.Tensor = field(init=False)

    def __post_init__(self, scale):
        self.scaled = self.x * scale

    @cached_property
    def total(self):
        return self.x.sum() + self.scaled.sum()


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


@case("A dataclass has an init-only argument, a field without one, and a cached sum.")
def dataclass_of_all_kinds(place):
    def batches():
        for number in range(6):
            one = Measured(place.numbers(number, place.medium), scale=0.5)
            if number % 2:
                assert one.total is one.total
            yield one

    kept = []
    for one in place.prefetch(batches()):
        place.busy()
        kept.append((one.x, one.scaled, float(one.total), sorted(vars(one))))
    return kept


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


@case("A prefetcher is read twice by `tee`, the second reader four batches late.")
def read_by_tee(place):
    first, second = itertools.tee(
        place.prefetch([place.numbers(n, place.medium) for n in range(8)])
    )
    kept = []
    for _ in range(4):
        place.busy()
        kept.append(next(first) * 2)
    for ahead, behind in itertools.zip_longest(first, second):
        kept.append((ahead, behind))
    return kept


@case("Two coroutines read prefetchers of their own, and take turns at each batch.")
def read_in_coroutines(place):
    async def train(start):
        kept = []
        for x in place.prefetch([place.numbers(start + n, place.medium) for n in range(5)]):
            await asyncio.sleep(0)
            place.busy()
            kept.append(x * 2)
        return kept

    async def main():
        return await asyncio.gather(train(0), train(10))

    return asyncio.run(main())


@case("Batches are made under inference mode, and trained on outside after a clone.", devices=REAL)
def inference_batches(place):
    weight, kept = nn.Parameter(place.moved(torch.ones(8))), []
    with torch.inference_mode():
        given = list(place.prefetch([place.numbers(number, 8) for number in range(4)]))
    for x in given:
        with pytest.raises(RuntimeError):
            (weight * x).sum().backward()
        loss = (weight * x.clone()).sum()
        loss.backward()
        kept.append((loss, x.is_inference()))
    return kept, weight.grad


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
