"""A loop edits an object, and the step comes to it in one of many ways.

At first the loop puts other objects in place of those that were there, later it edits those.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import weakref

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

    def listed(self):
        return [part for part in self.parts if part.weight > 0]


class Passes:
    """Made by the step itself; it leads to its owner's parts."""

    def __init__(self, owner):
        self._owner = owner

    @property
    def current(self):
        return self._owner.stage

    def __enter__(self):
        return self._owner.stage

    def __exit__(self, *_):
        pass


class GoesByYield(Passes):
    def __iter__(self):
        yield from self._owner.parts


@dataclasses.dataclass
class Wrapped:
    part: Part


def in_scope(manager):
    with manager as part:
        return part.weight


def unpacked(owner):
    first, *rest = owner.parts
    return first.weight + sum(part.weight for part in rest)


WAYS = {
    # Of several parts.
    "next": lambda o: next(iter(o.parts)).weight,
    "sorted": lambda o: sorted(o.parts, key=lambda part: part.weight)[-1].weight,
    "max": lambda o: max(o.parts, key=lambda part: part.weight).weight,
    "map": lambda o: sum(map(lambda part: part.weight, o.parts)),  # noqa: C417
    "filter": lambda o: total(filter(lambda part: part.weight > 0, o.parts)),
    "chain": lambda o: sum(p.weight for p in itertools.chain(o.parts, [o.stage])),
    "reversed": lambda o: sum(p.weight for p in reversed(o.parts)),
    "zip": lambda o: sum(a.weight * b.weight for a, b in zip(o.parts, o.named.values(), strict=True)),
    "enumerate": lambda o: sum(p.weight * at for at, p in enumerate(o.parts)),
    "unpacked": unpacked,
    "arguments": lambda o: (lambda *parts: total(parts))(*o.parts),
    "keywords": lambda o: (lambda **parts: total(parts.values()))(**o.named),
    # By generators and other iterators.
    "generator": lambda o: sum(p.weight for p in o.active()),
    "iterator by yield": lambda o: sum(p.weight for p in GoesByYield(o)),
    # Of one part.
    "name made at run time": lambda o: getattr(o, o.name).weight,
    "key made at run time": lambda o: o.named[o.key].weight,
    "vars": lambda o: vars(o)["stage"].weight,
    "property": lambda o: o.current.weight,
    "property of what the step makes": lambda o: Passes(o).current.weight,
    "context": lambda o: in_scope(Passes(o)),
    "partial": lambda o: functools.partial(lambda part, k: part.weight * k, o.stage)(2.0),
    "copy": lambda o: copy.copy(o.stage).weight,
    "or": lambda o: (o.stage or o.parts[0]).weight,
    "condition": lambda o: (o.stage if o.name else o.parts[0]).weight,
    "list": lambda o: total(o.listed()),
    "dataclass": lambda o: Wrapped(o.stage).part.weight,
    "weak reference": lambda o: weakref.ref(o.stage)().weight,
    "setdefault": lambda o: o.named.setdefault("a", None).weight,
    "get": lambda o: o.named.get("c", o.stage).weight,
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
AUDITED = {"keywords", "iterator by yield"}


@pytest.mark.quick_cases(4)
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
