"""Measure variants of a script against it as written, in windows of one run, by turns.

The variants themselves live above this room: the command line hands them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from gapless.records.comparison import Spread
from gapless.records.finding import Trial


if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from gapless.records.finding import Finding


# After a change of sides, memory and caches are those of the other side for a step or two.
_NUM_SETTLING = 2

# A variant that is not what it is to be by then is measured as it is.
_MOST_SETTLING = 100

# A window of quick steps has so many times as many at most.
_MOST_TIMES = 3

# Fewer windows of a side have no spread.
_FEWEST_WINDOWS = 2

_TOO_SHORT = "the script ended before it was measured"


class Variant(Protocol):
    """One change of a running script, which can be applied and undone.

    All methods are called at the end of a step, in the thread that trains.

    Attributes:
        name: such as "recorded batches".
        change: what it changes, in one sentence.
    """

    name: str
    change: str

    @property
    def refusal(self) -> str:
        """Why it cannot be measured here, or no longer; empty where it can."""

    @property
    def details(self) -> tuple[str, ...]:
        """What was seen while it was in, one sentence each."""

    @property
    def is_settled(self) -> bool:
        """Whether the steps that follow are those to be measured; asked while it is in."""

    @property
    def num_steps_to_recover(self) -> int:
        """Steps as written after which nothing is left of it, such as batches that were loaded ahead."""

    def is_for(self, findings: Sequence[Finding]) -> bool:
        """Return whether it may mend one of these."""

    def start(self, step_ended: Callable[[Any], None]) -> None:
        """Put it in.

        Args:
            step_ended: to be called with an optimizer at the end of its step where torch calls no
                hooks of optimizers.
        """

    def stop(self) -> None:
        """Take it out, so that the script runs as written.

        Nothing happens if it is out.
        """

    def close(self) -> None:
        """Let go of everything; it is out, and is not put in again."""


def those_for(variants: Sequence[Variant], findings: Sequence[Finding]) -> list[Variant]:
    """Return the variants that may mend one of the findings."""
    return [variant for variant in variants if variant.is_for(findings)]


class VariantTrials:
    """Windows of the script as written and of a variant, in turns: A B A B; one variant after the other.

    A window begins and ends with a device that has nothing to do: the host waits for it there, on
    both sides, and nowhere else. So the window has all the work of its steps, and none of others.

    Args:
        variants: to be measured.
        synchronize: waits until the device has done everything.
        step_ended: of `Variant.start`.
        now: the time in seconds.
        num_windows: of each side.
        num_steps: of a window.
        least_s: seconds of a window; it has up to three times as many steps where they are quick.

    Attributes:
        is_over: whether all of them have been measured.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        *,
        synchronize: Callable[[], object],
        step_ended: Callable[[Any], None],
        now: Callable[[], float] = perf_counter,
        num_windows: int = 5,
        num_steps: int = 20,
        least_s: float = 0.2,
    ) -> None:
        self._variants = variants
        self._synchronize = synchronize
        self._step_ended = step_ended
        self._now = now
        self._num_windows = num_windows
        self._num_steps = num_steps
        self._least_s = least_s
        self._trials: list[Trial] = []
        self.is_over = False
        # A generator that each end of a step resumes.
        self._course = self._take_all()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What was measured so far, one for each variant that is done."""
        return tuple(self._trials)

    def start(self) -> None:
        """Begin; a step begins.

        Sync: Blocks the host until the device is idle, at the border of windows.
        """
        self._go_on()

    def next_step(self) -> None:
        """Note that one step has ended and the next begins.

        Sync: Blocks the host until the device is idle, at the border of windows.
        """
        self._go_on()

    def stop(self) -> None:
        """Take out what is in, and keep what has been measured; the last step has ended."""
        self._course.close()
        self.is_over = True
        for variant in self._variants[len(self._trials) :]:
            self._trials.append(_ended(variant, _Sides(problem=_TOO_SHORT)))

    def _go_on(self) -> None:
        if not self.is_over:
            self.is_over = next(self._course, "over") == "over"

    def _take_all(self) -> Generator[None, None, None]:
        for variant in self._variants:
            sides = _Sides()
            try:
                yield from self._take_turns(variant, sides)
            except GeneratorExit:
                # The script ended in mid course; the windows that are over may be enough.
                if min(len(sides.as_written), len(sides.changed)) < _FEWEST_WINDOWS:
                    sides.problem = _TOO_SHORT
                raise
            except Exception as error:
                sides.problem = _raised(error)
            finally:
                self._trials.append(_ended(variant, sides))

    def _take_turns(self, variant: Variant, sides: _Sides) -> Generator[None, None, None]:
        num_to_recover = _NUM_SETTLING
        for _ in range(self._num_windows):
            if variant.refusal:
                return
            yield from _steps(num_to_recover)
            sides.as_written.append((yield from self._window()))
            try:
                variant.start(self._step_ended)
                yield from self._settle(variant)
                sides.changed.append((yield from self._window()))
            finally:
                variant.stop()
            num_to_recover = max(_NUM_SETTLING, variant.num_steps_to_recover)

    def _settle(self, variant: Variant) -> Generator[None, None, None]:
        yield from _steps(_NUM_SETTLING)
        for _ in range(_MOST_SETTLING):
            if variant.is_settled or variant.refusal:
                return
            yield

    def _window(self) -> Generator[None, None, float]:
        """Let the steps of a window pass; return how many there were in a second."""
        self._synchronize()
        begin = self._now()
        yield from _steps(self._num_steps)
        num_steps = self._num_steps
        while self._now() - begin < self._least_s and num_steps < _MOST_TIMES * self._num_steps:
            yield
            num_steps += 1
        self._synchronize()
        return num_steps / (self._now() - begin)


@dataclass
class _Sides:
    """Steps a second in the windows of both sides.

    Attributes:
        problem: why they say nothing.
    """

    as_written: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    problem: str = ""


def _steps(number: int) -> Generator[None, None, None]:
    for _ in range(number):
        yield


def _raised(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {error}"


def _ended(variant: Variant, sides: _Sides) -> Trial:
    """Let go of a variant; return what was measured of it."""
    try:
        variant.close()
    except Exception as error:
        sides.problem = _raised(error)
    refusal = variant.refusal or sides.problem
    return Trial(
        name=variant.name,
        change=variant.change,
        steps_per_second=None if refusal else Spread.of(sides.changed),
        baseline=None if refusal else Spread.of(sides.as_written),
        refusal=refusal,
        details=variant.details,
    )
