"""Where a row of state lives, how a loop runs over it, and what a report has to say of audits.

What is asked of the report of an object whose replays are audited:

* A line with "audit" and "1 in N calls" in it says how seldom audits are now: N as it is after the last
  good audit.
* A line with "audit" and "differ" in it tells of a difference: which result, and since which call at
  the earliest. The same line is a `CaptureWarning`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from inner_doors import replayed_whatever_it_takes


if TYPE_CHECKING:
    from collections.abc import Callable


HAS_AUDITS = "audit_every" in inspect.signature(gapless.capture).parameters
needs_audits = pytest.mark.skipif(not HAS_AUDITS, reason="`capture` has no `audit_every` yet")

# So seldom that none comes by chance.
NEVER = 10**9

GUARDED, REFUSED, AUDITED, SILENT = "GUARDED", "REFUSED", "AUDITED", "SILENT"


class Place:
    """A device, a folder, and what undoes a row's changes to the process.

    Args:
        folder: for files.
        scheduler: of a simulated device.
        device: another one.
    """

    def __init__(self, folder, scheduler="asap", device=None):
        self.folder = folder
        self.device = SimulatedDevice(scheduler=scheduler) if device is None else device
        self._undone = contextlib.ExitStack()

    def __enter__(self):
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        for put_back, state in zip(
            (random.setstate, np.random.set_state, torch.set_rng_state), states, strict=True
        ):
            self.at_end(put_back, state)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        if isinstance(self.device, SimulatedDevice):
            self._undone.enter_context(self.device)
            self._undone.enter_context(self.device.allow_waits())
        self._undone.enter_context(replayed_whatever_it_takes())
        return self

    def __exit__(self, *failure):
        return self._undone.__exit__(*failure)

    def at_end(self, do, *args, **kwargs):
        """Call a function when the loop has ended."""
        self._undone.callback(do, *args, **kwargs)

    def patch(self, holder, name, value):
        """Set an attribute until the loop has ended."""
        self._undone.enter_context(mock.patch.object(holder, name, value))

    def environ(self, name, value):
        """Set an environment variable until the loop has ended."""
        self._undone.enter_context(mock.patch.dict(os.environ, {name: value}))

    def on(self, values):
        """Return a tensor on the device."""
        return torch.as_tensor(values, dtype=torch.float32).to(self.device.torch_device)

    def linear(self):
        """Return a linear layer of three inputs on the device, with weights of one half."""
        layer = torch.nn.Linear(3, 1, bias=False).to(self.device.torch_device)
        with torch.no_grad():
            layer.weight.fill_(0.5)
        return layer


@dataclass
class Ran:
    """What is seen of one loop.

    Attributes:
        results: values of each call.
        reports: text of the report after each call; empty if nothing is captured.
        refusals: kinds and texts at the end.
        changes: lines about values that graphs had baked in.
        replays: number of replays after each call.
        warned: texts of warnings.
    """

    results: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def differs_from(self, other):
        """Return the numbers of the calls whose results are others."""
        pairs = zip(self.results, other.results, strict=True)
        return [number for number, (one, two) in enumerate(pairs) if one != two]

    def told_at(self):
        """Return after which call an audit has told of a difference; None if none has."""
        told = (number for number, report in enumerate(self.reports) if lines_of_audits(report))
        return next(told, None)


def lines_of_audits(report):
    """Return the lines of a report that tell of differences."""
    found = (line.strip() for line in report.splitlines())
    return [line for line in found if "audit" in line and "differ" in line]


def block_of(report):
    """Return N, the calls of which one is audited, as a report says; the largest of several objects."""
    found = re.findall(r"audit.*\b1 in ([\d,]+) calls", report)
    return max(int(each.replace(",", "")) for each in found)


def values(result):
    """Return what a result holds, with its dtype, as text."""
    if isinstance(result, torch.Tensor):
        return f"{result.dtype} {result.detach().tolist()}"
    return repr([values(one) for one in result])


def batch(place, number):
    """Return a batch, as a loop moves it to the device."""
    return place.on([0.25 + number % 7, 1.5, -2.0])


def run(row, folder, *, calls, at, options: dict[str, Any] | None = None, device=None) -> Ran:
    """Run one row's loop.

    Args:
        row: with `set_up(place)`, which returns the step and the change.
        folder: for files.
        calls: how many.
        at: before which of them the change is made; None for never.
        options: of `capture`; None runs as written.
        device: another one than a simulated one.
    """
    ran = Ran()
    with warnings.catch_warnings(record=True) as caught, Place(folder, device=device) as place:
        warnings.simplefilter("always")
        as_written, change = row.set_up(place)
        step: Callable[..., Any] = as_written
        if options is not None:
            step = gapless.capture(as_written, device=place.device, **options)
        for number in range(calls):
            if number == at:
                change()
            ran.results.append(values(step(batch(place, number))))
            if options is not None:
                ran.reports.append(str(step.report))
                ran.replays.append(step.report.num_replays)
    if options is not None:
        ran.refusals = [f"{one.kind}: {one.text}" for one in step.report.refusals]
        ran.changes = list(step.report.changes)
    ran.warned = [str(one.message) for one in caught]
    return ran


def verdict(captured, plain):
    """Return the verdict on a captured loop, beside the same loop as written."""
    if captured.told_at() is not None:
        return AUDITED
    if captured.differs_from(plain):
        return SILENT
    return REFUSED if captured.refusals else GUARDED
