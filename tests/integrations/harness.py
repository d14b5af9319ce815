"""What the cases about frameworks are written in: how they run, what is compared, the verdicts.

A case is one program of a user: it builds a model from a configuration, trains it with a framework in a
`Place` (`places.py`), and returns everything that the user could compare: logged values with their steps,
final weights, states of optimizers, rates, evaluations, predictions. It runs twice from the same seeds: as
the reference, without gapless, and as the product, with the lines of the integration. All of it must be
equal, bit for bit, and so must the states of the random generators at the end. After that the verdict of
the case is compared with the reports.

A replayed training step is counted where torch is called: a forward pass in training (of Lightning: a
batch) and a step of an optimizer. How many there are is counted in the run as written.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gapless
from hazards.captured_harness import _process_restored, differences, freeze
from hazards.harness import CPU, GPU, SIMULATED
from integrations.places import IntegrationMissingError, place_of


if TYPE_CHECKING:
    from collections.abc import Callable


EVERYWHERE = (CPU, SIMULATED, GPU)
DEVICES = (SIMULATED, GPU)

# One case of each framework.
PLAIN = (
    "hf_training-model_of_ones_own",
    "lightning_training-network",
    "accelerate_loops-plainest",
)


# --------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Verdict:
    """What is expected of a case.

    Attributes:
        name: "replays", "as written" or "either".
        words: regular expressions, of which each must be found in what reports and warnings say.
        of: names of what must be replayed; empty for all that was watched.
    """

    name: str
    words: tuple[str, ...] = ()
    of: tuple[str, ...] = ()


def replays(*names):
    """Expect that at least half of the training steps are replays; of all, if nothing is named."""
    return Verdict("replays", of=names)


def as_written(*words):
    """Expect that it runs as written, and that one warning and a report say these words."""
    return Verdict("as written", words)


def either(*words):
    """Expect the same bits; and these words, unless at least half of the steps are replays."""
    return Verdict("either", words)


REPLAYS = replays()
EITHER = either()


@dataclass(frozen=True)
class FrameworkCase:
    """One program of a user of a framework, and what is expected of it.

    Attributes:
        name: of the program's function.
        theme: name of the file.
        framework: whose trainer, or accelerator, it uses.
        sentence: what users do.
        expect: the verdict.
        devices: where the case makes sense.
        program: takes a place; returns what is compared.
    """

    name: str
    theme: str
    framework: str
    sentence: str
    expect: Verdict
    devices: tuple[str, ...]
    program: Callable[[Any], Any]

    def __str__(self):
        return f"{self.theme}-{self.name}"


FRAMEWORK_CASES: list[FrameworkCase] = []


def framework_case(
    framework, sentence, *, expect=REPLAYS, devices=EVERYWHERE, name=None, theme=None
):
    """Register the function as a case about a framework, by its name and its file if none is given."""

    def register(program):
        case = FrameworkCase(
            name or program.__name__,
            theme or program.__module__.rsplit(".", 1)[-1],
            framework,
            sentence,
            expect,
            tuple(devices),
            program,
        )
        assert str(case) not in map(str, FRAMEWORK_CASES), case
        FRAMEWORK_CASES.append(case)
        return program

    return register


# ------------------------------------------------------------------------------- one run


@dataclass
class Outcome:
    """What one run of a program gave.

    Attributes:
        result: all that is compared, by what it is, as plain data.
        error: the traceback, if the program raised.
        races: that the simulated device found.
        warned: texts of gapless' warnings.
        rates_warned: texts of torch's warnings about schedulers.
        printed: what went to stderr.
    """

    result: dict[str, Any]
    error: str
    races: list[str]
    warned: list[str]
    rates_warned: list[str]
    printed: str


def run(case, place):
    """Run the program of the case once, from the same seeds as every time."""
    errors = io.StringIO()
    with (
        _process_restored(),
        warnings.catch_warnings(record=True) as warned,
        _loggers_restored(),
        place,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        warnings.simplefilter("always")
        ended, error = _ended(case, place)
        result = {"the program": ended}
        result |= {name: freeze(place, state) for name, state in place.states().items()}
        place.named_reports()
        races = place.races() if hasattr(place, "races") else []
    return Outcome(
        result,
        error,
        [str(race) for race in races],
        [str(one.message) for one in warned if issubclass(one.category, gapless.CaptureWarning)],
        sorted({str(one.message) for one in warned if "lr_scheduler" in str(one.message)}),
        errors.getvalue(),
    )


def _ended(case, place):
    try:
        return freeze(place, {"returned": case.program(place)}), ""
    except IntegrationMissingError:
        raise
    except Exception as error:
        where = [type(error).__qualname__, str(error).replace(str(place.folder), "FOLDER")]
        return ("raised", *where), traceback.format_exc()


@contextlib.contextmanager
def _loggers_restored():
    """Let frameworks' loggers be silent: what they say of times and folders differs in every run."""
    names = ("lightning", "lightning.pytorch", "transformers", "accelerate")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


# --------------------------------------------------------------------------------- the judge


@functools.cache
def run_as_written(case, kind):
    """Return what the program gives as written, and how often it trains with each watched object."""
    place = place_of(kind, is_plain=True)
    return run(case, place), place.calls


def expected_of(case, kind):
    """Return what the program gives as written."""
    return run_as_written(case, kind)[0]


def num_calls_of(case, kind):
    """Return how often the program trains with each watched object, by name."""
    return run_as_written(case, kind)[1]


def judge(case, kind, **settings):
    """Return what is wrong with the product in this case, in words; nothing if it is right.

    The program runs as written and with the product.
    """
    place, expected = place_of(kind, is_plain=False, **settings), expected_of(case, kind)
    if expected.error:
        return [f"the program raised as written: {expected.error}"]
    try:
        outcome = run(case, place)
    except IntegrationMissingError as error:
        return [str(error)]
    wrong = [f"race: {race}" for race in outcome.races[:3]]
    differing = differences(expected.result, outcome.result)
    if differing:
        wrong += [*differing, *([outcome.error] if outcome.error else [])]
    wrong += [
        f"torch warns, and did not as written: {text}"
        for text in outcome.rates_warned
        if text not in expected.rates_warned
    ]
    wrong += _said_too_often(outcome, place)
    if kind != CPU:
        wrong += _VERDICTS[case.expect.name](case, kind, place, outcome)
    said = f"the reports say: {place.said()}; warned was: {outcome.warned}"
    return wrong + [said] * bool(wrong)


def _said_too_often(outcome, place):
    """Name warnings that were given more often than there are objects of one name."""
    most = max(1, place.most_of_a_name())
    return [
        f"warned {num} times: {text}"
        for text, num in Counter(outcome.warned).items()
        if num > most
    ]


def _too_few_replays(case, kind, place, outcome):
    del outcome
    calls = num_calls_of(case, kind)
    names = case.expect.of or place.names()
    assert names, f"{case} watches nothing"
    return [
        f"{place.num_replays(name)} of {calls[name]} training calls of {name!r} were replays"
        for name in names
        if place.num_replays(name) <= 0 or 2 * place.num_replays(name) < calls[name]
    ]


def _missing_words(case, kind, place, outcome):
    del kind
    said = {"warning": "\n".join(outcome.warned)}
    if place.said():  # a trainer that is left alone has no report
        said["report"] = place.said()
    return [
        f"no {what} says {word!r}"
        for what, text in said.items()
        for word in case.expect.words
        if not re.search(word, text, re.IGNORECASE)
    ]


def _as_written(case, kind, place, outcome):
    nothing = [] if outcome.warned else ["nothing was warned of"]
    return nothing + _missing_words(case, kind, place, outcome)


def _either(case, kind, place, outcome):
    if not case.expect.words:
        return []
    few = _too_few_replays(case, kind, place, outcome)
    missing = _missing_words(case, kind, place, outcome)
    return [*few, *missing] if few and missing else []


_VERDICTS = {"replays": _too_few_replays, "as written": _as_written, "either": _either}


def judge_the_program_itself(case, kind, **settings):
    """Return how the program as written differs from itself; nothing, or the case is no good.

    Settings are those of the place.
    """
    outcome = run(case, place_of(kind, is_plain=True, **settings))
    wrong = [f"race: {race}" for race in outcome.races[:3]]
    if outcome.error:
        return [f"the program raised: {outcome.error}"]
    calls = num_calls_of(case, kind)
    wrong += [f"{name!r} trains {calls[name]} times" for name in calls if calls[name] < 1]
    if case.expect.name == "replays" and not calls:
        wrong.append("nothing is watched")
    return wrong + differences(expected_of(case, kind).result, outcome.result)
