"""How a case is trained: one small network in four forms, eagerly and captured.

A case sets up what its code reads and returns the code. That is the forward pass, `forward(net, x)`, of a
network that is trained step by step; or, if it is `own_step`, the whole step, `step(training, x)`.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import gapless
from graphs.audits.harness import Place, batch, values


if TYPE_CHECKING:
    from collections.abc import Callable


CAPTURED = "CAPTURED"  # replayed before the change and after it
REFUSED = "REFUSED"  # never replayed; one line names callee or object, the line, and a rewrite
EITHER = "EITHER"  # captured or refused, as the code may decide
AUDITED = "AUDITED"  # not seen; with an audit of each replay nothing differs

FORMS = ("step", "method", "in_place", "group")
STEPS = ("step", "method", "group")

CALLS, AT = 20, 10

_SITE = re.compile(r"([\w./-]+\.py):(\d+)")


@dataclass(frozen=True, eq=False)
class Case:
    """One way to read or write state in a step.

    Attributes:
        set_up: takes a `Place` and the network; returns the code, the change and, if it is another
            than a tensor, what makes a batch of a tensor and the number of the call. The change takes
            the training and the number of the call; None if nothing changes.
        group: "written", "odd" or "unread".
        expect: the verdict.
        names: of the callee or the object; a refusal has one of them.
        each_call: whether the change comes before each call, not once.
        shows: whether the losses are others for the change.
        own_step: whether the code is the whole step.
        expect_of: verdicts of forms that differ.
    """

    set_up: Callable[[Any, torch.nn.Module], tuple[Any, ...]]
    group: str
    expect: str
    names: tuple[str, ...] = ()
    each_call: bool = False
    shows: bool = True
    own_step: bool = False
    expect_of: dict[str, str] = field(default_factory=dict)

    @property
    def name(self):
        return self.set_up.__name__

    @property
    def forms(self):
        return STEPS if self.own_step else FORMS

    def __str__(self):
        return self.name

    def verdict_of(self, form):
        return self.expect_of.get(form, self.expect)

    def has_site(self, text):
        """Whether a refusal names a line of this case."""
        lines, first = inspect.getsourcelines(self.set_up)
        file = Path(inspect.getsourcefile(self.set_up)).name
        return any(
            Path(path).name == file and first <= int(line) < first + len(lines)
            for path, line in _SITE.findall(text)
        )


def register(cases, group):
    """Return decorators of cases: one for each verdict."""

    def marked(expect):
        def mark(*names, **settings):
            def add(set_up):
                cases.append(Case(set_up, group, expect, names=names, **settings))
                return set_up

            return add

        return mark

    return marked(CAPTURED), marked(REFUSED), marked(EITHER), marked(AUDITED)


class Net(torch.nn.Module):
    """Two layers, and whatever a case keeps beside them."""

    def __init__(self, place):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.last = torch.nn.Linear(4, 1)
        self.to(place.device.torch_device)

    def hidden(self, x):
        return torch.tanh(self.first(x))

    def out(self, x):
        return self.last(self.hidden(x))

    def forward(self, x):
        return self.written(self, x)


class Training:
    """A network, its optimizer and their step."""

    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

    def train_step(self, x):
        loss = self.net(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class OwnTraining(Training):
    """A training whose step is the case's."""

    def train_step(self, x):
        return self.written(self, x)


@dataclass
class Trained:
    """What is seen of one loop.

    Attributes:
        results: losses of each call, and the weights at the end.
        replays: number of replays after each launch.
        num_graphs: number of graphs after each launch.
        refusals: texts of refusals at the end.
        changes: lines of values that graphs had baked in.
    """

    results: list[str] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)
    num_graphs: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    @property
    def is_replayed(self):
        """Whether it is replayed before the change and after it."""
        middle = self.replays[(len(self.replays) - 1) // 2]
        return 0 < middle < self.replays[-1]

    @property
    def has_new_graphs(self):
        """Whether there are more graphs than at the first replay."""
        pairs = zip(self.replays, self.num_graphs, strict=True)
        return self.num_graphs[-1] > next((graphs for replays, graphs in pairs if replays), 0)


def prepared(training, form, device, options):
    """Return what takes a list of batches and returns their losses, and what gives a report."""
    step = training.train_step
    if form == "step":
        step = lambda x: training.train_step(x)  # noqa: E731  # a function, as users write it
    if device is None:
        return lambda xs: [step(x) for x in xs], None
    if form == "in_place":
        gapless.capture(training.net, training.optimizer, device=device, **options)
        return lambda xs: [step(x) for x in xs], lambda: gapless.capture_report(training.net)
    if form == "group":
        captured = gapless.capture(step, steps_per_launch=2, device=device, **options)
        return captured, lambda: captured.report
    captured = gapless.capture(step, device=device, **options)
    return lambda xs: [captured(x) for x in xs], lambda: captured.report


def train(case, folder, *, form="step", at=AT, captured=True):
    """Train a case in one form; a change comes before call `at`, or before each call."""
    found = Trained()
    with warnings.catch_warnings(), Place(folder) as place:
        warnings.simplefilter("ignore")
        net = Net(place)
        written, change, *others = case.set_up(place, net)
        make_batch = others[0] if others else lambda x, number: x
        training = (OwnTraining if case.own_step else Training)(net)
        (training if case.own_step else net).written = written
        options = {"audit_every": 1} if case.verdict_of(form) == AUDITED else {}
        do, report_of = prepared(training, form, place.device if captured else None, options)
        size = 2 if form == "group" else 1
        for first in range(0, CALLS, size):
            numbers = range(first, first + size)
            for number in numbers:
                if at is not None and change is not None and (case.each_call or number == at):
                    change(training, number)
            batches = [make_batch(batch(place, number), number) for number in numbers]
            found.results += [values(loss) for loss in do(batches)]
            if report_of is not None:
                report = report_of()
                found.replays.append(report.num_replays)
                found.num_graphs.append(report.num_graphs)
                found.refusals = [one.text for one in report.refusals]
                found.changes = list(report.changes)
        found.results += [values(weight) for weight in net.state_dict().values()]
    return found


@functools.cache
def trained_eagerly(case, folder):
    """Return the results of a case's eager loop, which are the same in all forms."""
    return train(case, folder, captured=False).results


def faults_of(case, form, found, eager):
    """Return what is not as the case expects it, in words."""
    expect = case.verdict_of(form)
    is_of_unread = case.group == "unread" and expect == CAPTURED
    faults = {
        "stale": found.results != eager,
        "lines": any("\n" in text for text in found.refusals),
        "neither": expect != AUDITED and not found.refusals and not found.replays[-1],
        "refused": expect == CAPTURED and found.refusals,
        "no_replays": expect == CAPTURED and not found.is_replayed,
        "captured_anew": is_of_unread and (found.has_new_graphs or found.changes),
        "replayed": expect == REFUSED and found.replays[-1],
    }
    of_text = _faults_of_text(case, found.refusals) if expect == REFUSED else []
    return [name for name, is_so in faults.items() if is_so] + of_text


def _faults_of_text(case, refusals):
    """Return what the best refusal lacks."""
    if not refusals:
        return ["no_refusal"]
    lacking = []
    for text in refusals:
        faults = []
        if not any(name in text for name in case.names):
            faults.append("no_name")
        if not case.has_site(text):
            faults.append("no_site")
        if not text.partition("; ")[2]:
            faults.append("no_rewrite")
        lacking.append(faults)
    return min(lacking, key=len)
