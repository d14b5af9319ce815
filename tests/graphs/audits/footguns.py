"""A footgun: what people write that a graph can miss, and one training of it in four forms.

A row is a forward pass, `forward(net, x)`, of a small module, and a change. One training is made of it
in four forms: a step function, a method of a trainer, a module and an optimizer in place, and a step of
which two calls are launched together. Host effects are lines that a row notes in `net.log`. The rows
stand in `footgun_classes.py`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import gapless
from graphs.audits.harness import NEVER, Place, Ran, batch, values


if TYPE_CHECKING:
    from collections.abc import Callable


CAPTURED = "CAPTURED"  # replayed before the change and after it, with equal results
GUARDED = "GUARDED"  # noticed before a replay; captured anew, or as written
REFUSED = "REFUSED"  # never replayed; one line says why
AUDITED = "AUDITED"  # not seen; an audit tells
EITHER = "EITHER"  # any of these: no real script writes it
NOT_AUDITED = (
    "NOT_AUDITED"  # effects on the host alone, or in some calls only: the docs list the class
)

FORMS = ("step", "method", "in_place", "group")

# The change comes when there have been replays, and leaves room for more.
CALLS, AT = 20, 12


@dataclass(frozen=True)
class Footgun:
    """One case of a class.

    Attributes:
        name: of the case.
        forward: takes the module and a batch; returns the output.
        change: takes the training and the number of the call, before each call; None if the forward
            pass itself is what changes.
        when: "once", "every fourth" or "each call": how often the change comes.
        expect: the verdict; None for that of its class.
        shows: whether the losses as written are others without the change.
        expect_of: verdicts of forms that differ.
        set_up: takes the training, before anything is captured.
        of: the class, as one word.
    """

    name: str
    forward: Callable[[Any, torch.Tensor], torch.Tensor]
    change: Callable[[Any, int], Any] | None
    when: str = "once"
    expect: str | None = None
    shows: bool = True
    expect_of: dict[str, str] = field(default_factory=dict)
    set_up: Callable[[Any], None] = lambda training: None
    of: str = ""

    def __str__(self):
        return f"{self.of}-{self.name.replace(' ', '_')}"

    def verdict_of(self, form):
        """Return the verdict that one form of it must get."""
        return self.expect_of.get(form, self.expect)


class Net(torch.nn.Module):
    """A layer, and whatever rows keep beside it."""

    kind_scale = 1.0

    def __init__(self, row, place):
        super().__init__()
        self.row_forward = row.forward
        self.layer = place.linear()
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("mean", place.on([0.0]))
        self.gain = torch.nn.Parameter(place.on([1.0]))
        self.scale, self.log, self.names, self.terms = 1.0, [], {"scale": 1.0}, [1.0, 1.0]

    def forward(self, x):
        return self.row_forward(self, x)


class Training:
    """A module, its optimizer, and a loop over them in one of four forms."""

    def __init__(self, row, place):
        self.row, self.place = row, place
        self.net = Net(row, place)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.5)
        self.zeroes, self.forgets = True, False
        row.set_up(self)

    def train_step(self, x):
        # No weight of a layer fits this: what changes late still makes a difference.
        loss = (self.net(x) - x.sin().sum()).square().mean()
        if self.zeroes:
            self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.forgets:
            self.optimizer.zero_grad()
        return loss.detach()

    def prepared(self, form, options):
        """Return what takes a list of batches and returns their losses, and what has a report."""
        step = self.train_step
        if form == "step":
            step = lambda x: self.train_step(x)  # noqa: E731  # a function, as users write it
        if options is None:
            return lambda xs: [step(x) for x in xs], None
        options = {"device": self.place.device, **options}
        if form == "in_place":
            gapless.capture(self.net, self.optimizer, **options)
            return lambda xs: [step(x) for x in xs], self.net
        if form == "group":
            grouped = gapless.capture(step, steps_per_launch=2, **options)
            return grouped, grouped
        captured = gapless.capture(step, **options)
        return lambda xs: [captured(x) for x in xs], captured


def train(row, place, form, *, calls, at, options=None):
    """Train a row in one form; a change comes before call `at`, and as often as the row says."""
    training, found = Training(row, place), Ran()
    step, reporting = training.prepared(form, options)
    size = 2 if form == "group" else 1
    for first in range(0, calls, size):
        for number in range(first, first + size):
            if at is not None and row.change is not None and is_due(row, number, at):
                row.change(training, number)
        losses = step([batch(place, number) for number in range(first, first + size)])
        found.results += [values(loss) for loss in losses]
        if reporting is not None:
            is_step = hasattr(reporting, "report")
            report = reporting.report if is_step else gapless.capture_report(reporting)
            other = "" if is_step else str(gapless.capture_report(training.optimizer))
            found.reports.append(f"{report}\n{other}")
            found.replays.append(report.num_replays)
            found.refusals = [one.text for one in report.refusals]
    found.results += [values(training.net.layer.weight), *training.net.log]
    return found


def is_due(row, number, at):
    """Whether the row's change comes before this call; in groups of two it never parts one."""
    if row.when == "once":
        return number == at
    return number >= at and (row.when == "each call" or number % 4 == 0)


# ------------------------------------------------------------------------------- the judge


def trained(row, form, folder, *, calls=CALLS, at=AT, options=None, device=None):
    """Train a row in one form at a place of its own; return what is seen."""
    with Place(folder, device=device) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(row, place, form, calls=calls, at=at, options=options)


def judged(row, form, folder, *, device=None):
    """Return what is wrong with a row in one form, in words; nothing if it has its verdict.

    With an audit of every replay nothing may differ from the loop as written, but what none promises; what
    replays miss without audits must be told.
    """
    expected = row.verdict_of(form)
    plain = trained(row, form, folder, device=device)
    audited = trained(row, form, folder, options={"audit_every": 1}, device=device)
    alone = trained(row, form, folder, options={"audit_every": NEVER}, device=device)
    is_told, is_stale = audited.told_at() is not None, alone.results != plain.results
    before, after = alone.replays[AT // 2 - 1 if form == "group" else AT - 1], alone.replays[-1]
    wrong = {
        "an audited loop differs": expected != NOT_AUDITED and audited.results != plain.results,
        "replays differ, and nothing is said": expected != NOT_AUDITED
        and is_stale
        and not (is_told or audited.refusals),
        "an audit tells of a difference": expected in (CAPTURED, GUARDED, REFUSED) and is_told,
        "no audit tells": expected == AUDITED and not is_told,
        "replays differ": expected in (CAPTURED, GUARDED, REFUSED) and is_stale,
        "no replays before the change": expected in (CAPTURED, GUARDED) and not before,
        "no replays after the change": expected == CAPTURED and after <= before,
        "refused": expected == CAPTURED and bool(alone.refusals),
        "replayed": expected == REFUSED and after > 0,
        "not refused": expected == REFUSED and not alone.refusals,
        "more than one line": any("\n" in text for text in alone.refusals),
    }
    return [words for words, is_wrong in wrong.items() if is_wrong]
