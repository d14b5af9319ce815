"""Batches of every structure: their tensors move, the rest passes through as it is."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pytest
import torch

import gapless
from hazards.harness import EVERYWHERE, HOLDS, case, form_case


def form(name, sentence, make, *, devices=EVERYWHERE):
    form_case(name, "containers", sentence, make, devices=devices)


class Pair(NamedTuple):
    x: torch.Tensor
    name: str
    rest: Any = None


@dataclass
class Example:
    x: torch.Tensor
    y: torch.Tensor | None
    ids: tuple[str, ...] = ()
    seen: int = dataclasses.field(default=0, init=False)


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    inner: Any


@dataclass
class Scaled:
    x: torch.Tensor
    factor: dataclasses.InitVar[float] = 2.0

    def __post_init__(self, factor):
        self.x = self.x * factor


class Rows(list):
    """A list with an attribute."""


class AttrDict(dict):
    """A dict whose items are attributes, and that says KeyError where there is none."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Split(enum.Enum):
    TRAIN = "train"


class Opaque:
    """An object without `.to`, that holds a tensor."""

    def __init__(self, x):
        self.x = x


def x_of(place, number):
    size = [place.tiny, place.medium, place.large][number % 3]
    x = place.numbers(number, size)
    return place.pinned(x) if number % 2 else x


form("bare_tensor", "The batch is a tensor.", x_of)
form(
    "nested",
    "Dicts of lists of tuples of dicts.",
    lambda p, n: {"a": [(x_of(p, n), {"b": [x_of(p, n + 1), None]})], "c": ("text", n)},
)
form(
    "named_tuple",
    "The batch is a named tuple with text in it.",
    lambda p, n: Pair(x_of(p, n), f"name {n}", [x_of(p, n + 1)]),
)
form(
    "dataclass",
    "The batch is a dataclass with tensors, None and text.",
    lambda p, n: Example(x_of(p, n), None if n % 2 else torch.tensor(n), ("a", f"b{n}")),
)
form(
    "dataclass_that_scales",
    "A dataclass scales in `__post_init__`, which must run once only.",
    lambda p, n: Scaled(x_of(p, n)),
)
form(
    "user_dict",
    "The batch is a UserDict.",
    lambda p, n: collections.UserDict(x=x_of(p, n), name=f"n{n}"),
)
form(
    "attr_dict",
    "The batch is a dict with items as attributes; asking for `.to` is a KeyError.",
    lambda p, n: AttrDict(x=x_of(p, n), names=["a", "b"]),
)
form(
    "sets",
    "Sets and ranges are part of the batch.",
    lambda p, n: (x_of(p, n), {1, 2}, frozenset([3]), range(n), slice(1, n)),
)
form(
    "torch_things",
    "A dtype, a device and a class are part of the batch.",
    lambda p, n: {
        "x": x_of(p, n),
        "dtype": torch.float16,
        "where": torch.device("cpu"),
        "kind": torch.Tensor,
        "cls": Opaque,
    },
)
form(
    "all_sizes",
    "Tensors of all sizes, pinned and pageable, in one batch.",
    lambda p, n: [
        p.pinned(p.numbers(n, size)) if (n + i) % 2 else p.numbers(n, size)
        for i, size in enumerate([*p.sizes(), *p.sizes()])
    ],
)
form(
    "types_change",
    "A field is now a tensor, now a number, now None.",
    lambda p, n: {"x": x_of(p, n), "y": [torch.tensor(n), n, None][n % 3]},
)
form(
    "shapes_change",
    "Sizes shrink and grow from batch to batch, to zero as well.",
    lambda p, n: p.numbers(n, [40, 7, 0, 300, 1][n % 5], 3),
)


@case("Arrays, functions, members of an enumeration, and text arrive as the very same objects.")
def the_very_same_objects(place):
    array, words = np.ones(4), ["a", "b"]
    text, call = "".join(["long ", "text"]), functools.partial(print, "x")
    loader = [(place.numbers(0, 5), array, text, call, Split.TRAIN, words)] * 3
    for batch in place.prefetch(loader):
        assert batch[1] is array
        assert batch[2] is text
        assert batch[3] is call
        assert batch[4] is Split.TRAIN
        assert batch[5] == words
    return [batch[0] for batch in place.prefetch(loader)]


@case("A list subclass keeps its type and its attribute; a UserDict is no plain dict.")
def subclasses_of_containers(place):
    results = []
    for number in range(4):
        rows = Rows([x_of(place, number), "text"])
        rows.source = f"file {number}"
        for batch in place.prefetch([rows]):
            results.append((batch, type(batch).__name__, batch.source))
    return results


@case("The loader's own containers still hold host tensors after they were handed out.")
def the_loaders_containers_are_left_alone(place):
    loader = [{"x": x_of(place, n), "more": [x_of(place, n)]} for n in range(4)]
    before = [(one["x"], one["more"][0]) for one in loader]
    results = []
    for batch in place.prefetch(loader):
        results.append(batch["x"] * 1)
        batch["x"] = None
        batch["more"].append("mine")
    if place.kind != "cpu":
        assert all(one["x"] is x for one, (x, _) in zip(loader, before, strict=True))
        assert all(one["more"][0] is y for one, (_, y) in zip(loader, before, strict=True))
        assert all(len(one["more"]) == 1 for one in loader)
    return results


@case("The step changes the tensors of its batch in place (normalising, masking).")
def the_step_changes_tensors(place):
    results = []
    for x, y in place.prefetch([(x_of(place, n), torch.tensor([n, n + 1])) for n in range(8)]):
        place.busy()
        x.sub_(7).mul_(2)
        y[0] = -100
        results.append((x, y))
    return results


class Row(TypedDict):
    """A batch whose keys are known to the type checker alone."""

    x: torch.Tensor
    ids: list[int]


class Defaulted(NamedTuple):
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
            yield Row(x=x, ids=[number]), Defaulted(x), Defaulted(x, place.pinned(x * 2))

    return [(row, one.both, two.both, two) for row, one, two in place.prefetch(batches())]


@case("A list holds itself: the error says so, and does not hang.", verdict=HOLDS)
def list_that_holds_itself(place):
    batch = [place.numbers(0, 4)]
    batch.append(batch)
    with pytest.raises((RecursionError, gapless.BatchError)):
        list(place.prefetch([batch]))
    assert len(list(place.prefetch([place.numbers(1, 4)]))) == 1
