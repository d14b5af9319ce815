"""What the cases about captured steps are written in: how a step is captured, and what is compared.

A case is one training loop of a user, which gets a `Place` (`harness.py`) and captures its step by
`place.capture(step)`. The loop runs twice from the same seeds: as the reference, where `capture` gives
the step itself, and as the product, where it gives what `gapless.capture` gives. Equal must be, bit for
bit: what the loop returns or raises, what it printed and warned of, and the states of all random
generators after it. After that the verdict of the case is compared with the report of the captured step.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import gc
import inspect
import io
import os
import random
import struct
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gapless
from backward_thread import forget_leads
from float32_settings import float32_settings, set_float32_settings
from hazards import harness
from hazards.harness import CPU, DEVICES, GPU, SIMULATED, Frozen


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["CAPTURED", "CPU", "DEVICES", "EITHER", "GPU", "HOLDS", "SIMULATED"]

_FOLDER = Path(__file__).parent


# --------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Verdict:
    """What is expected of a case.

    Attributes:
        name: "captured", "refused", "either" or "holds".
        words: of a refusal: each must occur in the report's refusals.
        at: of a refusal: a piece of the line that must be named; empty if none must.
    """

    name: str
    words: tuple[str, ...] = ()
    at: str = ""


CAPTURED = Verdict("captured")
EITHER = Verdict("either")
HOLDS = Verdict("holds")


def refused(*words, at=""):
    """Expect a refusal that says these words, and names the line that holds the text `at`."""
    return Verdict("refused", words, at)


def line_of(function, text):
    """Return "file.py:NN" of the one line that holds the text: in the function, or in its file."""
    lines, first = inspect.getsourcelines(function)
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("def "))
    path = Path(inspect.getsourcefile(function))
    found = [
        first + number for number, line in enumerate(lines) if number > start and text in line
    ]
    if not found:
        everything = path.read_text(encoding="utf-8").splitlines()
        found = [
            number
            for number, line in enumerate(everything, 1)
            if text in line
            and f'"{text}"' not in line
            and "refused(" not in line
            and "at=" not in line
        ]
    assert len(found) == 1, f"{text!r} stands in {len(found)} lines of {function.__name__}"
    return f"{path.name}:{found[0]}"


@dataclass(frozen=True)
class CapturedCase:
    """One loop of a user with a captured step, and what is expected of it.

    Attributes:
        name: of the loop's function.
        theme: name of the file.
        sentence: what users do.
        expect: the verdict.
        devices: where the case makes sense.
        waits: whether the device is waited for after each call of a captured step.
        holds_plainly: whether the reference passes the loop's own assertions too.
        raises: whether the loop ends with an exception, as written.
        loop: takes a `Place`; returns what is compared.
    """

    name: str
    theme: str
    sentence: str
    expect: Verdict
    devices: tuple[str, ...]
    waits: bool
    holds_plainly: bool
    raises: bool
    loop: Callable[[Any], Any]

    def __str__(self):
        return f"{self.theme}-{self.name}"


CAPTURED_CASES: list[CapturedCase] = []


def captured_case(
    sentence, *, expect, devices=DEVICES, waits=True, holds_plainly=True, raises=False
):
    """Register the function as a case about captured steps."""

    def register(loop):
        theme, name = loop.__module__.rsplit(".", 1)[-1], loop.__name__
        known = {case.name for case in CAPTURED_CASES if case.theme == theme}
        assert name not in known, name
        new = CapturedCase(
            name=name,
            theme=theme,
            sentence=sentence,
            expect=expect,
            devices=tuple(devices),
            waits=waits,
            holds_plainly=holds_plainly,
            raises=raises,
            loop=loop,
        )
        CAPTURED_CASES.append(new)
        return loop

    return register


# ----------------------------------------------------------------------------------- places


class _Captures:
    """What a place of `harness.py` gets for captured steps.

    Attributes:
        is_plain: whether this is the reference, where `capture` gives the step itself.
        steps: the captured steps of the product.
    """

    def __init__(self, *, is_plain, waits=True, **options):
        super().__init__(is_reference=False, **options)
        self.is_plain, self._waits, self.steps = is_plain, waits, []

    def __enter__(self):
        super().__enter__()
        np.random.seed(13)  # noqa: NPY002  # the generator that people use
        return self

    def capture(self, step=None, /, **options):
        """Return the step captured, or as it is in the reference; also a decorator."""
        if step is None:
            return functools.partial(self.capture, **options)
        if self.is_plain:
            plain = _with_its_host_part(step) if hasattr(step, "on_host") else step
            return _many(plain) if "steps_per_launch" in options else plain
        return _Watched(gapless.capture(step, device=self.device, **options), self)

    gapless_capture = capture

    def reports(self):
        """Return the reports of all captured steps."""
        return [step.captured.report for step in self.steps]

    def states(self):
        """Return the states of all random generators."""
        return {
            "Python's generator": random.getstate(),
            "numpy's generator": np.random.get_state(),  # noqa: NPY002
            "torch's generator": torch.get_rng_state(),
            "the device's generator": self.device_state(),
        }

    def device_state(self):
        return None

    def after_call(self):
        if self._waits:
            self.settle()


def _with_its_host_part(step):
    """Return a function that calls `step.on_host(batch)` before the step, as gapless promises."""

    def run(batch):
        step.on_host(batch)
        return step(batch)

    return run


def _many(step):
    """Return a function that runs the step for each batch of a list."""

    def run(batches):
        return [step(batch) for batch in batches]

    return run


class _Watched:
    """A captured step whose calls are counted, with a wait after each of them."""

    def __init__(self, captured, place, key=None):
        self.captured, self.num_calls = captured, 0
        self._place, self._key, self._of_objects = place, key, {}
        place.steps.append(self)

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        try:
            return self.captured(*args, **kwargs)
        finally:
            self._place.after_call()

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        known = self._of_objects.get(id(instance))
        if known is None or known._key is not instance:
            bound = self.captured.__get__(instance, owner)
            known = _Watched(bound, self._place, instance)
            self._of_objects[id(instance)] = known
        return known

    def __getattr__(self, name):
        return getattr(self.captured, name)


class CpuPlace(_Captures, harness.Place):
    """The CPU, where there is nothing to capture."""


class SimulatedPlace(_Captures, harness.SimulatedPlace):
    """The simulated device, for the reference too."""

    def device_state(self):
        return self.device.random_state()


class GpuPlace(_Captures, harness.GpuPlace):
    """The first GPU, with deterministic algorithms."""

    def __enter__(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Which thread leads decides the bits of gradients that are differentiated, and when they are captured.
        forget_leads(self.torch_device)
        return super().__enter__()

    def device_state(self):
        return torch.cuda.get_rng_state()


_PLACES = {CPU: CpuPlace, SIMULATED: SimulatedPlace, GPU: GpuPlace}


# ----------------------------------------------------------------------- what is compared


def freeze(place, value):
    """Return what the value is now, as plain data, floats by their bits; waits for the device."""
    if isinstance(value, Frozen):
        return value.content
    if isinstance(value, float):
        return ("float", struct.pack("<d", value).hex(), repr(value))
    if isinstance(value, BaseException):
        return _frozen_exception(value)
    if isinstance(value, torch.Tensor):
        return harness.freeze(place, value)
    if isinstance(value, collections.abc.Mapping):
        items = tuple((freeze(place, key), freeze(place, item)) for key, item in value.items())
        return (type(value).__qualname__, items)
    if isinstance(value, set | frozenset):
        return (type(value).__qualname__, tuple(sorted(repr(item) for item in value)))
    if isinstance(value, list | tuple | collections.deque):
        return (type(value).__qualname__, tuple(freeze(place, item) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return freeze(place, {name: getattr(value, name) for name in names})
    return harness.freeze(place, value)


def snapshot(place, value):
    """Read the value now, in the middle of a loop; waits for the device."""
    return Frozen(freeze(place, value))


def _frozen_exception(error):
    """Return type, text, the lines of cases that it came through, and what it was raised during."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in frames
        if _is_of_a_case(frame.filename)
    ]
    before = error.__context__ and _frozen_exception(error.__context__)
    return (type(error).__qualname__, str(error), tuple(lines), before)


def _is_of_a_case(filename):
    path = Path(filename)
    return path.parent == _FOLDER and path != Path(__file__) and path.stem[:5] != "test_"


@dataclass
class Outcome:
    """What one run of a loop gave.

    Attributes:
        result: all that is compared, by what it is, as plain data.
        error: the traceback, if the loop raised.
        races: that the simulated device found.
        num_calls: of captured steps.
        num_replays: that the reports tell.
        refusals: texts of what forbade a capture.
        said: all that the reports say.
    """

    result: dict[str, Any]
    error: str
    races: list[str]
    num_calls: int
    num_replays: int
    refusals: list[str]
    said: str


def run(case, place):
    """Run the loop of the case once, from the same seeds as every time."""
    printed, errors = io.StringIO(), io.StringIO()
    with (
        _process_restored(),
        warnings.catch_warnings(record=True) as warned,
        place,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        warnings.simplefilter("always")
        ended, error = _ended(case, place)
        states = place.states()
        told = {
            "printed": printed.getvalue(),
            "printed to stderr": errors.getvalue(),
            "warned": [str(one.message) for one in warned if _is_of_the_user(one)],
        }
        parts = {"the loop": ended, **told, **states}
        result = {name: freeze(place, part) for name, part in parts.items()}
        return Outcome(result, error, *_from(place))


def _ended(case, place):
    try:
        return {"returned": freeze(place, case.loop(place))}, ""
    except Exception as error:
        if case.expect == HOLDS:
            raise
        return {"raised": error}, traceback.format_exc()


def _from(place):
    reports = place.reports()
    races = place.races() if hasattr(place, "races") else []
    return (
        [str(race) for race in races],
        sum(step.num_calls for step in place.steps),
        sum(report.num_replays for report in reports),
        [text for report in reports for text in refusals_of(report)],
        "; ".join(str(report) for report in reports),
    )


def _is_of_the_user(warning):
    is_of_torchs_kernels = "Triggered internally" in str(warning.message)
    is_of_gapless = issubclass(warning.category, gapless.CaptureWarning)
    return _is_of_a_case(warning.filename) and not (is_of_torchs_kernels or is_of_gapless)


def refusals_of(report):
    """Return the texts of all that forbade a capture."""
    found = getattr(report, "refusals", None)
    if found is None:
        one = getattr(report, "refusal", None)
        found = [] if one is None else [one]
    return [str(getattr(one, "text", one)) for one in found]


def everything_said(report):
    """Return all that a report says, in one text."""
    parts = [str(report), str(getattr(report, "note", "")), *refusals_of(report)]
    return "\n".join([*parts, str(report.as_dict())])


@contextlib.contextmanager
def _process_restored():
    """Put back what loops change of the process."""
    numpy_state, environment = np.random.get_state(), dict(os.environ)  # noqa: NPY002
    precision, has_grad = float32_settings(), torch.is_grad_enabled()
    deterministic = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with harness._state_restored():
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            os.environ.clear()
            os.environ.update(environment)
            set_float32_settings(precision)
            torch.set_grad_enabled(has_grad)
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


# --------------------------------------------------------------------------------- the judge


def reference_of(case, kind):
    """Return a new place for the loop as written."""
    return _PLACES[kind](is_plain=True, waits=case.waits)


def product_of(case, kind, **options):
    """Return a new place for the loop with captured steps."""
    return _PLACES[kind](is_plain=False, waits=case.waits, **options)


_known: dict[tuple[str, str], dict[str, Any]] = {}


def expected_of(case, kind):
    """Return what the loop as written gives, which is the same under every schedule."""
    key = (str(case), kind)
    if key not in _known:
        outcome = run(case, reference_of(case, kind))
        # An error of the case's own would be the same with captures, and nothing compared.
        assert not case.holds_plainly or bool(outcome.error) == case.raises, outcome.error
        _known[key] = outcome.result
    return _known[key]


def judge(case, kind, **options):
    """Return what is wrong with the product in this case, in words; nothing if it is right."""
    return compare(case, kind, product_of(case, kind, **options))


def differences(expected, actual):
    """Return the first places where two results differ, in words."""
    found = []
    for name, right in expected.items():
        found += harness.differences(right, actual[name], name)
    return found[:6]


def compare(case, kind, place):
    """Return what is wrong with a run in this place, in words."""
    outcome = run(case, place)
    wrong = [f"race: {race}" for race in outcome.races[:3]]
    if case.expect == HOLDS:
        return wrong
    differing = differences(expected_of(case, kind), outcome.result)
    if differing:
        wrong += [*differing, *([outcome.error] if outcome.error else [])]
    wrong += _VERDICTS[case.expect.name](case, outcome)
    return wrong + [f"the report says: {outcome.said}"] * bool(wrong)


def _captured(case, outcome):
    del case
    if 3 * outcome.num_replays >= outcome.num_calls > 0:
        return []
    return [f"{outcome.num_replays} of {outcome.num_calls} calls were replays"]


def _refused(case, outcome):
    if not outcome.refusals:
        return ["nothing was refused"]
    words = list(case.expect.words)
    if case.expect.at:
        words.append(line_of(case.loop, case.expect.at))
    everything = "\n".join(outcome.refusals)
    return [f"no refusal says {word!r}" for word in words if word not in everything]


def _either(case, outcome):
    del case, outcome
    return []


_VERDICTS = {"captured": _captured, "refused": _refused, "either": _either}


def judge_the_loop_itself(case, kind):
    """Return how the loop as written differs from itself; nothing, or the case is no good."""
    place = reference_of(case, kind)
    if case.expect == HOLDS:
        return compare(case, kind, place)
    outcome = run(case, place)
    races = [f"race: {race}" for race in outcome.races[:3]]
    if bool(outcome.error) != case.raises:
        return [f"raises is {case.raises}, but the loop raised: {outcome.error or 'nothing'}"]
    return races + differences(expected_of(case, kind), outcome.result)
