"""A loop edits an object, and the step comes to it in one of many ways.

At first the loop puts other objects in place of those that were there, later it edits those.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import heapq
import itertools
import operator
import types
import weakref
from typing import NamedTuple

import pytest
import torch

import gapless
from edited_parts import Part, total
from gapless.testing import SimulatedDevice
from graphs.audits.harness import lines_of_audits


class Owner:
    """What the loop has: some parts, by several names."""

    def __init__(self):
        self.parts = [Part(), Part()]
        self.stage = Part()
        self.named = {"a": Part(), "b": Part()}
        self.name, self.key = "stage", "a"

    def replace(self):
        self.parts = [Part(2.0), Part(5.0)]
        self.stage = Part(4.0)
        self.named = {"a": Part(3.0), "b": Part(0.5)}

    def edit(self):
        for part in (*self.parts, self.stage, *self.named.values()):
            part.weight += 0.25

    # --- what a step may go through ---

    @property
    def current(self):
        return self.stage

    def active(self):
        for part in self.parts:
            if part.weight > 0:
                yield part

    def delegated(self):
        yield from self.active()

    def pairs(self):
        yield from self.named.items()

    @contextlib.contextmanager
    def scope(self):
        yield self.stage

    def listed(self):
        return [part for part in self.parts if part.weight > 0]


class Passes:
    """Made by the step itself; it leads to its owner's parts."""

    def __init__(self, owner):
        self._owner = owner
        self._at = 0

    @property
    def current(self):
        return self._owner.stage

    def __enter__(self):
        return self._owner.stage

    def __exit__(self, *_):
        pass

    def __getitem__(self, at):
        return self._owner.parts[at]

    def __getattr__(self, name):
        return getattr(self._owner, name)


class Goes(Passes):
    def __iter__(self):
        return iter(self._owner.parts)


class GoesByYield(Passes):
    def __iter__(self):
        yield from self._owner.parts


class GoesItself(Passes):
    def __iter__(self):
        return self

    def __next__(self):
        if self._at == len(self._owner.parts):
            raise StopIteration
        self._at += 1
        return self._owner.parts[self._at - 1]


class Pair(NamedTuple):
    one: Part
    other: list[Part]


@dataclasses.dataclass
class Wrapped:
    part: Part


def in_scope(manager):
    with manager as part:
        return part.weight


def unpacked(owner):
    first, *rest = owner.parts
    return first.weight + sum(part.weight for part in rest)


def popped(owner):
    parts, weight = list(owner.parts), 0.0
    while parts:
        weight += parts.pop().weight
    return weight


def matched(owner):
    match owner.stage:
        case Part(weight=weight):
            return weight


def recursive(parts):
    return parts[0].weight + recursive(parts[1:]) if parts else 0.0


def sent(owner):
    def generator():
        part = None
        while True:
            part = yield part

    going = generator()
    next(going)
    return going.send(owner.stage).weight


WAYS = {
    # Of several parts.
    "next": lambda o: next(iter(o.parts)).weight,
    "sorted": lambda o: sorted(o.parts, key=lambda part: part.weight)[-1].weight,
    "max": lambda o: max(o.parts, key=lambda part: part.weight).weight,
    "reduce": lambda o: functools.reduce(lambda a, part: a + part.weight, o.parts, 0.0),
    "map": lambda o: sum(map(lambda part: part.weight, o.parts)),  # noqa: C417
    "attrgetter": lambda o: sum(map(operator.attrgetter("weight"), o.parts)),
    "method": lambda o: sum(map(Part.value, o.parts)),
    "methodcaller": lambda o: sum(map(operator.methodcaller("value"), o.parts)),
    "filter": lambda o: total(filter(lambda part: part.weight > 0, o.parts)),
    "chain": lambda o: sum(p.weight for p in itertools.chain(o.parts, [o.stage])),
    "chain of lists": lambda o: total(itertools.chain.from_iterable([o.parts, [o.stage]])),
    "islice": lambda o: sum(p.weight for p in itertools.islice(o.parts, 2)),
    "reversed": lambda o: sum(p.weight for p in reversed(o.parts)),
    "zip": lambda o: sum(a.weight * b.weight for a, b in zip(o.parts, o.named.values(), strict=True)),
    "enumerate": lambda o: sum(p.weight * at for at, p in enumerate(o.parts)),
    "starmap": lambda o: sum(itertools.starmap(lambda p, k: p.weight * k, [(p, 2.0) for p in o.parts])),
    "groupby": lambda o: sum(p.weight for _, g in itertools.groupby(o.parts, key=type) for p in g),
    "tee": lambda o: sum(total(each) for each in itertools.tee(o.parts)),
    "product": lambda o: sum(a.weight * b.weight for a, b in itertools.product(o.parts, o.parts)),
    "nlargest": lambda o: total(heapq.nlargest(2, o.parts, key=lambda part: part.weight)),
    "deque": lambda o: collections.deque(o.parts).pop().weight,
    "set": lambda o: total(set(o.parts)),
    "unpacked": unpacked,
    "popped": popped,
    "arguments": lambda o: (lambda *parts: total(parts))(*o.parts),
    "keywords": lambda o: (lambda **parts: total(parts.values()))(**o.named),
    "comprehension of a dict": lambda o: sum({k: p.weight for k, p in o.named.items()}.values()),
    "bound methods": lambda o: sum(f() for f in [part.value for part in o.parts]),
    "recursion": lambda o: recursive(o.parts),
    "any": lambda o: 2.0 if any(p.weight > 5 for p in o.parts) else 1.0,
    # By generators and other iterators.
    "generator": lambda o: sum(p.weight for p in o.active()),
    "delegated generator": lambda o: sum(p.weight for p in o.delegated()),
    "generator of pairs": lambda o: sum(p.weight for _, p in o.pairs()),
    "list of a generator": lambda o: sum(p.weight for p in list(o.active())),
    "sorted generator": lambda o: sum(p.weight for p in sorted(o.active(), key=id)),
    "dict of a generator": lambda o: dict(o.pairs())["a"].weight,
    "sent to a generator": sent,
    "iterator of a list": lambda o: sum(p.weight for p in Goes(o)),
    "iterator by yield": lambda o: sum(p.weight for p in GoesByYield(o)),
    "iterator itself": lambda o: sum(p.weight for p in GoesItself(o)),
    "iterator in a function": lambda o: total(GoesItself(o)),
    # Of one part.
    "name made at run time": lambda o: getattr(o, o.name).weight,
    "key made at run time": lambda o: o.named[o.key].weight,
    "vars": lambda o: vars(o)["stage"].weight,
    "path": lambda o: operator.attrgetter("stage.weight")(o),
    "property": lambda o: o.current.weight,
    "property of what the step makes": lambda o: Passes(o).current.weight,
    "item of what the step makes": lambda o: Passes(o)[0].weight,
    "attribute of what the step makes": lambda o: Passes(o).stage.weight,
    "context": lambda o: in_scope(Passes(o)),
    "context by yield": lambda o: in_scope(o.scope()),
    "partial": lambda o: functools.partial(lambda part, k: part.weight * k, o.stage)(2.0),
    "copy": lambda o: copy.copy(o.stage).weight,
    "deep copy": lambda o: copy.deepcopy(o.stage).weight,
    "or": lambda o: (o.stage or o.parts[0]).weight,
    "and": lambda o: (o.name and o.stage).weight,
    "condition": lambda o: (o.stage if o.name else o.parts[0]).weight,
    "match": matched,
    "text": lambda o: float(f"{o.stage.weight}"),
    "format": lambda o: float(f"{o.parts[0].weight}"),
    "default": lambda o: (lambda part=o.stage: part.weight)(),
    "tuple": lambda o: (lambda: (o.stage, o.parts))()[0].weight,
    "dict": lambda o: (lambda: {"stage": o.stage})()["stage"].weight,
    "list": lambda o: total(o.listed()),
    "dataclass": lambda o: Wrapped(o.stage).part.weight,
    "named tuple": lambda o: Pair(o.stage, o.parts).one.weight,
    "weak reference": lambda o: weakref.ref(o.stage)().weight,
    "weak proxy": lambda o: weakref.proxy(o.stage).weight,
    "itemgetter": lambda o: total(operator.itemgetter(0, 1)(o.parts)),
    "setdefault": lambda o: o.named.setdefault("a", None).weight,
    "get": lambda o: o.named.get("c", o.stage).weight,
    "ChainMap": lambda o: collections.ChainMap(o.named)["a"].weight,
    "proxy of a dict": lambda o: types.MappingProxyType(o.named)["a"].weight,
    "ordered dict": lambda o: next(iter(collections.OrderedDict(o.named).values())).weight,
}  # fmt: skip


def seen_by(way, wrap, device):
    owner = Owner()
    step, seen = wrap(lambda x: x.sum() * way(owner)), []
    for number in range(20):
        if number == 7:
            owner.replace()
        if number == 14:
            owner.edit()
        seen.append(step(torch.full((2,), number + 1.0).to(device)).item())
    return step, seen


# No name leads to the object: audits tell.
AUDITED = {
    "chain of lists", "tee", "keywords", "generator of pairs", "iterator of a list",
    "iterator by yield", "iterator itself", "iterator in a function",
}  # fmt: skip


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", WAYS)
def test_an_edited_object_counts_whatever_way_leads_to_it(name):
    """By another graph, or as written."""
    way, options = WAYS[name], {"audit_every": 1} if name in AUDITED else {}
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        _, expected = seen_by(way, lambda step: step, device.torch_device)
        step, seen = seen_by(
            way, functools.partial(gapless.capture, device=device, **options), device.torch_device
        )

    assert seen == expected
    report = step.report
    assert report.num_replays or report.refusals or lines_of_audits(str(report)), report
