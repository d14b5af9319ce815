"""What these cases are written in: a loop runs as written and captured, and both must have the same bits.

A case is a loop of a user, which gets a place and captures what it trains: a step by `place.capture(step)`,
or objects in place by `place.capture(model, optimizer)`. It runs twice on the simulated device, or on a GPU,
from the same seeds. What the loop returns, prints, warns of and raises, and the random generators after it, must be
equal bit for bit; then the verdict is compared with what the reports and warnings say.

The cases were written from what is promised, before the code that they judge. Those that fail are in
`not_yet.py`, with what was seen.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.utils import counters

import gapless
from anybody.not_yet import NOT_YET
from gapless.testing import SimulatedDevice
from hazards import captured_harness
from hazards.captured_harness import GPU, SIMULATED, differences, freeze, refusals_of


if TYPE_CHECKING:
    from collections.abc import Callable


NUM = 24


# --------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Expect:
    """What must be so besides the same bits.

    Attributes:
        replayed: whether a third of the calls of each captured object must be replays.
        words: regular expressions; one line of a refusal or warning must hold all of them. If
            `replayed` as well, one of both is enough.
        of: kinds of the objects that must be replayed ("step", "model", "optimizer"); empty for all.
    """

    replayed: bool = True
    words: tuple[str, ...] = ()
    of: tuple[str, ...] = ()


REPLAYED = Expect()


def replayed(*of):
    """Expect that a third of the calls of these are replays."""
    return Expect(of=of)


def or_told(*words, of=()):
    """Expect replays, or one line that holds all these words: the way that works."""
    return Expect(words=words, of=of)


def told(*words):
    """Expect one line that holds all these words, whatever is replayed."""
    return Expect(replayed=False, words=words)


@dataclass(frozen=True)
class AnybodyCase:
    """One loop of a user, and what is expected of it; `needs_gpu` if a library in it asks for CUDA."""

    name: str
    sentence: str
    loop: Callable[[Any], Any]
    expect: Expect
    needs_gpu: bool = False

    def __str__(self):
        return self.name


class Cases(list):
    """The cases of one file, each registered by the decorator that this is."""

    def __init__(self, theme):
        super().__init__()
        self.theme = theme

    def __call__(self, sentence, *, expect=REPLAYED):
        def register(loop):
            self.register(loop.__name__, sentence, loop, expect)
            return loop

        return register

    def register(self, name, sentence, loop, expect, **options):
        name = f"{self.theme}-{name}"
        assert name not in {known.name for known in self}, name
        self.append(AnybodyCase(name, sentence, loop, expect, **options))


def marked(name):
    """Return the mark of a case that fails today, from `not_yet.py`."""
    return [pytest.mark.xfail(strict=True, reason=NOT_YET[name])] if name in NOT_YET else []


def params(cases):
    """Return the cases of the simulated device as pytest's parameters, those that fail today marked so."""
    return [
        pytest.param(case, id=str(case), marks=marked(str(case)))
        for case in cases
        if not case.needs_gpu
    ]


# ----------------------------------------------------------------------------------- places


class _InPlace:
    """What a place of `captured_harness.py` gets for objects that are captured where they stand."""

    def __init__(self, **options):
        super().__init__(**options)
        self.objects = []

    def capture(self, *captured, **options):
        """Return the step captured, or the objects, captured where they stand."""
        if not isinstance(captured[0], torch.nn.Module | torch.optim.Optimizer):
            return super().capture(*captured, **options)
        if not self.is_plain:
            gapless.capture(*captured, device=self.device, **options)
            self.objects += captured
        return captured[0] if len(captured) == 1 else captured

    def named_reports(self):
        """Return the kind and the report of all that is captured."""
        steps = [("step", step.captured.report) for step in self.steps]
        return steps + [(_kind_of(one), gapless.capture_report(one)) for one in self.objects]

    def reports(self):
        return [report for _, report in self.named_reports()]


class Place(_InPlace, captured_harness.SimulatedPlace):
    """The simulated device, whose clock counts launches."""

    def __init__(self, **options):
        super().__init__(**options)
        self._context = SimulatedDevice(scheduler=self.scheduler, durations={"launch": 1.0})

    def launched(self, work):
        """Return what a function returns, and how much it has launched."""
        before = self.device.now_ms()
        return work(), self.device.now_ms() - before


class GpuPlace(_InPlace, captured_harness.GpuPlace):
    """The first GPU, whose launches a profile counts."""

    def launched(self, work):
        torch.cuda.synchronize()
        # Deterministic algorithms fill each tensor that is made: launches of the test alone.
        deterministic = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False
        try:
            with torch.profiler.profile() as profile:
                out = work()
                torch.cuda.synchronize()
        finally:
            deterministic.fill_uninitialized_memory = True
        return out, sum(event.name.startswith(_LAUNCHES) for event in profile.events())

    def races(self):
        return []


_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")

PLACES = {SIMULATED: Place, GPU: GpuPlace}


def _kind_of(captured):
    return "optimizer" if isinstance(captured, torch.optim.Optimizer) else "model"


# --------------------------------------------------------------------------------- the judge


@dataclass
class Ran:
    """What one run gave: all that is compared, an error, races, reports, and lines that were said."""

    result: dict[str, Any]
    error: str
    races: list[str]
    reports: list[tuple[str, Any]]
    lines: list[str]


def ran(case, kind=SIMULATED, *, is_plain):
    """Run the loop of the case once, from the same seeds as every time."""
    # Children are not listened to in a process that has compiled something, as other tests have.
    counters.clear()
    printed, place = io.StringIO(), PLACES[kind](is_plain=is_plain)
    with (
        captured_harness._process_restored(),
        warnings.catch_warnings(record=True) as warned,
        place,
        contextlib.redirect_stdout(printed),
    ):
        warnings.simplefilter("always")
        error = ""
        try:
            ended = {"returned": freeze(place, case.loop(place))}
        except pytest.skip.Exception:
            raise
        except Exception as failure:
            ended, error = {"raised": repr(failure)}, traceback.format_exc()
        parts = {"the loop": ended, "printed": printed.getvalue(), **place.states()}
        result = {name: freeze(place, part) for name, part in parts.items()}
        reports = place.named_reports()
    lines = [
        str(one.message) for one in warned if issubclass(one.category, gapless.CaptureWarning)
    ]
    lines += [line for _, report in reports for line in [str(report), *refusals_of(report)]]
    return Ran(result, error, [str(race) for race in place.races()], reports, lines)


def judge(case, kind=SIMULATED):
    """Return what is wrong with the product in this case, in words; nothing if it is right."""
    expected = ran(case, kind, is_plain=True)
    if expected.error:
        return [f"the loop as written raises: {expected.error}"]
    found = ran(case, kind, is_plain=False)
    wrong = [f"race: {race}" for race in found.races[:3]]
    wrong += differences(expected.result, found.result)
    wrong += [found.error] if found.error else []
    wrong += _unexpected(case.expect, found)
    return wrong + [f"said: {line}" for line in found.lines] * bool(wrong)


def _unexpected(expect, found):
    few = _too_few(expect, found) if expect.replayed else []
    silent = _silent(expect.words, found) if expect.words else []
    if expect.replayed and expect.words:
        return few + silent if few and silent else []
    return few + silent


def _too_few(expect, found):
    counts = {}
    for kind, report in found.reports:
        replays, calls = counts.get(kind, (0, 0))
        now = report.num_replays
        counts[kind] = (replays + now, calls + now + report.num_eager)
    return [
        f"{replays} of {calls} calls of the {kind} were replays"
        for kind in expect.of or counts
        for replays, calls in [counts.get(kind, (0, 0))]
        if not 3 * replays >= calls > 0
    ]


def _silent(words, found):
    lines = [line for text in found.lines for line in re.split(r"[\n]", text)]
    if any(all(re.search(word, line, re.IGNORECASE) for word in words) for line in lines):
        return []
    return [f"no line says all of {words}"]
