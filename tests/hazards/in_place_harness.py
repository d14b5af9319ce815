"""What the cases about capture in place are written in: how objects are captured, what is compared.

A case is one training loop of a user, which gets a `Place` and captures its model, its loss module or its
optimizer where they stand, by `place.capture(model)`. The loop runs twice from the same seeds: as the
reference, where `capture` changes nothing, and as the product, where it is `gapless.capture`. What is
compared is what `captured_harness.py` compares. After that the verdict of the case is compared with the
report of each captured object.

A replayed call is counted where the call is made: a call of a model or of a loss module, and a step of an
optimizer. How many calls there are is counted apart from the product, in a run as written.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

import gapless
from gapless.graphs import account, call_windows
from hazards import captured_harness
from hazards.captured_harness import HOLDS, differences, line_of, refusals_of
from hazards.harness import CPU, GPU, SIMULATED


if TYPE_CHECKING:
    from collections.abc import Callable


EVERYWHERE = (CPU, SIMULATED, GPU)


# --------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class InPlace:
    """What is expected of a case about capture in place.

    Attributes:
        name: "captured", "refused" or "either".
        words: regular expressions, of which each must be found in what the reports say.
        at: a piece of the line that the reports must name; empty if none must.
        of: names of the objects of which most calls must be replays; empty for all.
    """

    name: str
    words: tuple[str, ...] = ()
    at: str = ""
    of: tuple[str, ...] = ()


def captured(*names):
    """Expect that at least half of the calls of these objects are replays; of all, if none is named."""
    return InPlace("captured", of=names)


def refused(*words, at=""):
    """Expect that the reports say these words, and name the line that holds the text `at`."""
    return InPlace("refused", words, at)


def either(*words, at=""):
    """Expect the words of a refusal, unless at least half of all calls are replays."""
    return InPlace("either", words, at)


CAPTURED = captured()


@dataclass(frozen=True)
class InPlaceCase:
    """One loop of a user with objects captured in place, and what is expected of it.

    Attributes:
        name: of the loop's function.
        theme: name of the file.
        sentence: what users do.
        expect: the verdict.
        devices: where the case makes sense.
        raises: whether the loop ends with an exception, as written.
        holds_plainly: whether the reference passes the loop's own assertions too.
        loop: takes a `Place`; returns what is compared.
    """

    name: str
    theme: str
    sentence: str
    expect: Any
    devices: tuple[str, ...]
    raises: bool
    holds_plainly: bool
    loop: Callable[[Any], Any]

    def __str__(self):
        return f"{self.theme}-{self.name}"


IN_PLACE_CASES: list[InPlaceCase] = []


def in_place_case(sentence, *, expect=CAPTURED, devices=EVERYWHERE, raises=False, plainly=True):
    """Register the function as a case about capture in place."""

    def register(loop):
        theme, name = loop.__module__.rsplit(".", 1)[-1], loop.__name__
        known = {case.name for case in IN_PLACE_CASES if case.theme == theme}
        assert name not in known, name
        IN_PLACE_CASES.append(
            InPlaceCase(name, theme, sentence, expect, devices, raises, plainly, loop)
        )
        return loop

    return register


# ----------------------------------------------------------------------------------- places


class _CapturesInPlace:
    """What a place of `captured_harness.py` gets for objects that are captured in place.

    Attributes:
        is_plain: whether this is the reference, where nothing is captured.
        objects: what was captured, by name.
        calls: how often each of them was called while it was captured, if `counts`.
    """

    def __init__(self, *, is_plain, counts=False, **options):
        super().__init__(is_plain=is_plain, waits=False, **options)
        self.objects, self.calls = {}, Counter()
        self._counts, self._released, self._hooks = counts, [], []

    def __enter__(self):
        entered = super().__enter__()
        if self._counts:
            self._hooks = [
                register_module_forward_pre_hook(self._count),
                register_optimizer_step_pre_hook(self._count),
            ]
        return entered

    def __exit__(self, *failure):
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*failure)

    def _count(self, called, *args):
        del args
        for name, known in self.objects.items():
            if known is called:
                self.calls[name] += 1

    def capture(self, captured, *, name="", **options):
        """Capture the object where it stands, and return it."""
        name = name or _kind_of(captured)
        assert self.objects.get(name, captured) is captured, f"{name!r} names two objects"
        if not self.is_plain:
            returned = gapless.capture(captured, device=self.device, **options)
            assert returned is captured, f"capture of {name!r} returned another object"
        self.objects[name] = captured
        return captured

    def release(self, captured):
        """Undo a capture."""
        (name,) = [name for name, known in self.objects.items() if known is captured]
        if not self.is_plain:
            self._released.append((name, gapless.capture_report(captured)))
            gapless.release(captured)
        del self.objects[name]

    def report(self, captured):
        """Return the report of an object, which the reference has none of."""
        return gapless.capture_report(captured)

    def named_reports(self):
        """Return names and reports of all objects that are or were captured."""
        if self.is_plain:
            return []
        now = [(name, gapless.capture_report(one)) for name, one in self.objects.items()]
        return [*self._released, *now]

    def reports(self):
        return [report for _, report in self.named_reports()]


def _kind_of(captured):
    if isinstance(captured, torch.optim.Optimizer):
        return "optimizer"
    is_loss = type(captured).__name__.endswith("Loss")
    return "loss" if is_loss else "model"


class CpuPlace(_CapturesInPlace, captured_harness.CpuPlace):
    """The CPU, where there is nothing to capture."""


class SimulatedPlace(_CapturesInPlace, captured_harness.SimulatedPlace):
    """The simulated device, for the reference too."""


class GpuPlace(_CapturesInPlace, captured_harness.GpuPlace):
    """The first GPU, with deterministic algorithms."""


_PLACES = {CPU: CpuPlace, SIMULATED: SimulatedPlace, GPU: GpuPlace}


# --------------------------------------------------------------------------------- the judge


def reference_of(kind, **options):
    """Return a new place for the loop as written."""
    return _PLACES[kind](is_plain=True, **options)


def product_of(kind, **options):
    """Return a new place for the loop with captured objects."""
    return _PLACES[kind](is_plain=False, **options)


_known: dict[tuple[str, str], Any] = {}
_num_calls: dict[tuple[str, str], Counter] = {}


def expected_of(case, kind):
    """Return what the loop as written gives, which is the same under every schedule."""
    key = (str(case), kind)
    if key not in _known:
        outcome = _run(case, reference_of(kind))
        assert not case.holds_plainly or bool(outcome.error) == case.raises, outcome.error
        _known[key] = outcome.result
    return _known[key]


def num_calls_of(case, kind):
    """Return how often the loop calls each object that it captures."""
    key = (str(case), kind)
    if key not in _num_calls:
        place = reference_of(kind, counts=True)
        _run(case, place)
        _num_calls[key] = place.calls
    return _num_calls[key]


def judge(case, kind, **options):
    """Return what is wrong with the product in this case, in words; nothing if it is right."""
    place = product_of(kind, **options)
    wrong = _wrong_in(case, kind, place)
    if kind != CPU and case.expect != HOLDS:
        wrong += _VERDICTS[case.expect.name](case, kind, place)
    return wrong + [f"the reports say: {said_by(place)}"] * bool(wrong)


def judge_in_turns(case, kind, **options):
    """Return what is wrong where replays and calls as written take turns, as in a comparison."""
    place = product_of(kind, **options)
    settings = {"NUM_BEFORE": 2, "NUM_IN_WINDOW": 2}
    with (
        mock.patch.multiple(call_windows, **settings),
        mock.patch.object(account, "judged", return_value=None),
    ):
        wrong = _wrong_in(case, kind, place)
    return wrong + [f"the reports say: {said_by(place)}"] * bool(wrong)


def _wrong_in(case, kind, place):
    """Return what a run of the product computes otherwise than the loop as written."""
    outcome = _run(case, place)
    wrong = [f"race: {race}" for race in outcome.races[:3]]
    if case.expect == HOLDS:
        return wrong
    differing = differences(expected_of(case, kind), outcome.result)
    return wrong + differing + [outcome.error] * bool(differing and outcome.error)


def _run(case, place):
    with _quiet():
        return captured_harness.run(case, place)


@contextlib.contextmanager
def _quiet():
    """Put back what loops change of torch, besides what `captured_harness.run` puts back."""
    was_anomaly = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.set_anomaly_enabled(was_anomaly)


def said_by(place):
    """Return all that the reports say, in one text."""
    parts = [[name, str(report), *refusals_of(report)] for name, report in place.named_reports()]
    return "\n".join(line for part in parts for line in part)


def _too_few_replays(case, kind, place):
    num_replays = Counter()
    for name, report in place.named_reports():
        num_replays[name] += report.num_replays
    calls = num_calls_of(case, kind)
    return [
        f"{num_replays[name]} of {calls[name]} calls of {name!r} were replays"
        for name in case.expect.of or num_replays
        if (num_replays[name] <= 0 and not _waits_for_its_proof(place, name))
        or 0 < 2 * num_replays[name] < calls[name]
    ]


def _waits_for_its_proof(place, name):
    """Return whether an object has graphs whose proof may never arrive.

    On a device that runs nothing before the host waits, it does not in a loop that never waits.
    """
    if place.scheduler != "lazy":
        return False
    return any(report.num_graphs for known, report in place.named_reports() if known == name)


def _missing_words(case, kind, place):
    del kind
    words = list(case.expect.words)
    if case.expect.at:
        words.append(re.escape(line_of(case.loop, case.expect.at)))
    said = said_by(place)
    return [
        f"no report says {word!r}" for word in words if not re.search(word, said, re.IGNORECASE)
    ]


def _refused(case, kind, place):
    nothing = [] if any(map(refusals_of, place.reports())) else ["nothing was refused"]
    return nothing + _missing_words(case, kind, place)


def _either(case, kind, place):
    few = _too_few_replays(case, kind, place)
    missing = _missing_words(case, kind, place)
    return [*few, *missing] if few and missing else []


_VERDICTS = {"captured": _too_few_replays, "refused": _refused, "either": _either}


def judge_the_loop_itself(case, kind, **options):
    """Return how the loop as written differs from itself; nothing, or the case is no good."""
    outcome = _run(case, reference_of(kind, **options))
    wrong = [f"race: {race}" for race in outcome.races[:3]]
    if bool(outcome.error) != case.raises:
        return [f"raises is {case.raises}, but the loop raised: {outcome.error or 'nothing'}"]
    return wrong + differences(expected_of(case, kind), outcome.result)
