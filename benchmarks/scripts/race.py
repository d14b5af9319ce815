"""All variants of a script, each in a process of its own, which take turns."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gapless
from benchmarks.scripts import worker
from benchmarks.scripts.bits import SAME, SAME_AS_EDITED, first_difference
from benchmarks.scripts.variants import (
    AS_WRITTEN,
    COMPILED,
    GPU_ONLY,
    IN_PLACE,
    WHOLE_STEP,
    changed_lines,
)
from gapless.device.find import find_device


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# A step is fast if it, with those behind it, takes at most so many times as long as later ones.
_FAST = 1.25
_RUN_OF_STEPS = 5

FIRST_EPOCHS = 2

# A profiled epoch of a variant of torch's tells nothing that its speed does not.
PROFILED = (AS_WRITTEN, IN_PLACE, WHOLE_STEP)

_SECONDS_TO_END = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How variants are measured.

    Attributes:
        device: name of the device.
        rounds: timed epochs of each variant.
        is_small: whether sizes are for a CPU.
        setup_limit: seconds after which a variant is given up that has not ended its first epoch.
        folder: of the files that processes print to.
    """

    device: str
    rounds: int
    is_small: bool
    setup_limit: float
    folder: Path


class VariantError(RuntimeError):
    """A variant cannot be measured."""


class Entrant:
    """A variant in a process of its own.

    Args:
        task: what the process trains.
        options: how it is measured.
    """

    def __init__(self, task: worker.Work, options: Options) -> None:
        self.variant = task.variant
        self.problem: str | None = None
        self.turns: list[dict[str, Any]] = []
        self.first: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {}
        self._limit = options.setup_limit
        self._cache = tempfile.TemporaryDirectory(prefix="compiled-")
        log = options.folder / f"{task.name}-{task.variant}.log"
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(
            target=worker.work, args=(other, task, str(log)), daemon=False
        )
        # A compiler that finds what another process has compiled would look quick.
        before = dict(os.environ)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._cache.name
        # Read when cuBLAS is first used, and needed later for deterministic algorithms.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        other.close()

    def tell(self, command: str) -> None:
        """Send a command."""
        try:
            self._connection.send(command)
        except OSError:
            self._fail(f"its process ended with exit code {self._process.exitcode}")

    def answer(self) -> dict[str, Any]:
        """Return the answer to the command before.

        Raises:
            VariantError: it failed, or did not answer in time.
        """
        if self.problem is None:
            try:
                if not self._connection.poll(self._limit):
                    self._fail(f"did not answer within {self._limit:.0f} s")
                else:
                    found: dict[str, Any] = self._connection.recv()
                    if "problem" not in found:
                        return found
                    self._fail(found["problem"])
            except (EOFError, OSError):
                self._process.join(5.0)
                self._fail(f"its process ended with exit code {self._process.exitcode}")
        raise VariantError(self.problem)

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            VariantError: as `answer`.
        """
        if self.problem is None:
            self.tell(command)
        return self.answer()

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.close()

    def close(self) -> None:
        """End the process, and remove what its compiler left."""
        self._connection.close()
        if self.problem is None:
            self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()
        self._cache.cleanup()


class Race:
    """Measures the variants of one script, stage by stage: see `run_all`.

    Args:
        name: of the script.
        variants: of it, as written first.
        steps: of an epoch.
        options: how they are measured.
        tell: is called with lines about the progress.
    """

    def __init__(
        self,
        name: str,
        variants: list[str],
        *,
        steps: int,
        options: Options,
        tell: Callable[[str], None],
    ) -> None:
        self.name, self.steps, self.options, self.tell = name, steps, options, tell
        self.left_out = {
            variant: reason
            for variant in variants
            if (reason := reason_to_leave_out(variant, options))
        }
        self.entrants = {
            variant: self._entrant(variant) for variant in variants if variant not in self.left_out
        }

    def _entrant(self, variant: str) -> Entrant:
        task = worker.Work(
            name=self.name,
            variant=variant,
            device=self.options.device,
            steps=self.steps,
            is_small=self.options.is_small,
        )
        return Entrant(task, self.options)

    def found(self) -> dict[str, dict[str, Any]]:
        """Return what was found of each variant."""
        reasons = {variant: {"left_out": why} for variant, why in self.left_out.items()}
        return {variant: self._summary(e) for variant, e in self.entrants.items()} | reasons

    def close(self) -> None:
        """End the processes."""
        for entrant in self.entrants.values():
            entrant.close()

    def begin_to_compile(self) -> None:
        """Start the first epoch of what compiles."""
        for entrant in self._running():
            self._attempt(entrant, entrant.answer)
        for entrant in self._compiled():
            entrant.tell(worker.FIRST)

    def set_up(self) -> None:
        """Train the first epochs of the others, one by one."""
        for entrant in self._running():
            if entrant.variant not in COMPILED:
                self._first_epochs(entrant)

    def end_compiling(self) -> None:
        """Train the first epochs of what compiles to their end."""
        for entrant in self._compiled():
            self._first_epochs(entrant, is_begun=True)

    def _first_epochs(self, entrant: Entrant, *, is_begun: bool = False) -> None:
        for number in range(FIRST_EPOCHS):
            asks = number > 0 or not is_begun
            found = self._attempt(
                entrant, (lambda: entrant.ask(worker.FIRST)) if asks else entrant.answer
            )
            if found is not None:
                entrant.first.append(found)
        if entrant.problem is None:
            seconds = sum(found["end"] for found in entrant.first)
            self.tell(f"{self.name}: {entrant.variant}: first epochs in {seconds:.1f} s")

    def take_rounds(self) -> None:
        """Time an epoch of each in turn; every round begins with another one."""
        for number in range(self.options.rounds):
            entrants = self._running()
            first = number % max(len(entrants), 1)
            for entrant in entrants[first:] + entrants[:first]:
                found = self._attempt(entrant, lambda e=entrant: e.ask(worker.TIMED))
                if found is not None:
                    entrant.turns.append(found)
            speeds = "  ".join(
                f"{entrant.variant} {self.steps / entrant.turns[-1]['seconds']:.1f}"
                for entrant in self._running()
            )
            self.tell(f"{self.name}: round {number + 1}: {speeds} steps/s")

    def profile(self) -> None:
        """Profile an epoch of those whose device time the table shows, one by one."""
        shown = [entrant for entrant in self._running() if entrant.variant in PROFILED]
        for entrant in shown:
            self._keep(entrant, self._attempt(entrant, lambda e=entrant: e.ask(worker.PROFILE)))

    def end_training(self) -> None:
        """Count waits, and end the trainings, side by side."""
        # What counts waits would have them compiled anew.
        counted = [entrant for entrant in self._running() if entrant.variant not in COMPILED]
        for entrant, found in self._all_at_once(counted, worker.WAITS):
            self._keep(entrant, found)
        for entrant, found in self._all_at_once(self._running(), worker.END):
            self._keep(entrant, found)

    def _keep(self, entrant: Entrant, found: dict[str, Any] | None) -> None:
        keys = ("waits", "sites", "busy_ms", "kernels", "memory", "reports")
        entrant.found |= {key: found[key] for key in keys if found and key in found}

    def _all_at_once(
        self, entrants: list[Entrant], command: str
    ) -> list[tuple[Entrant, dict[str, Any] | None]]:
        for entrant in entrants:
            entrant.tell(command)
        return [(entrant, self._attempt(entrant, entrant.answer)) for entrant in entrants]

    def compare_bits(self) -> None:
        """Train a few steps again with deterministic algorithms, all side by side."""
        found = {
            entrant.variant: answer["bits"]
            for entrant, answer in self._all_at_once(self._running(), worker.BITS)
            if answer is not None
        }
        written = found.pop(AS_WRITTEN, None)
        if written is None:
            return
        reference = self.entrants[AS_WRITTEN]
        again = self._bits(reference, worker.BITS)
        place = first_difference(written, again) if again else "its second run failed"
        reference.found["bits"] = f"not reproducible: {place}" if place else SAME
        for variant, bits in found.items():
            self.entrants[variant].found["bits"] = self._verdict(variant, bits, written)
        for entrant in self._running():
            entrant.tell(worker.QUIT)

    def _verdict(self, variant: str, bits: dict[str, str], written: dict[str, str]) -> str:
        place = first_difference(written, bits)
        if place is None:
            return SAME
        if variant in (IN_PLACE, WHOLE_STEP):
            edited = self._bits(self.entrants[variant], worker.BITS_CAPTURE_OFF)
            if edited is None:
                return f"unknown: the edited script failed, {self.entrants[variant].problem}"
            if first_difference(edited, bits) is None:
                return SAME_AS_EDITED
        return f"different: {place}"

    def _bits(self, entrant: Entrant, command: str) -> dict[str, str] | None:
        found = self._attempt(entrant, lambda: entrant.ask(command))
        return None if found is None else found["bits"]

    def _compiled(self) -> list[Entrant]:
        return [entrant for entrant in self._running() if entrant.variant in COMPILED]

    def _running(self) -> list[Entrant]:
        return [entrant for entrant in self.entrants.values() if entrant.problem is None]

    def _attempt(self, entrant: Entrant, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except VariantError as problem:
            self.tell(f"{self.name}: {entrant.variant}: {problem}")
            return None

    def _summary(self, entrant: Entrant) -> dict[str, Any]:
        lines = changed_lines(self.name, entrant.variant)
        found = {"problem": entrant.problem, "lines": lines, **entrant.found}
        if entrant.turns:
            found |= times_of(entrant, self.steps)
        return found


def run_all(races: list[Race], tell: Callable[[str], None]) -> None:
    """Take races through their stages, side by side where no time is measured or decides.

    What a race found is there when this returns; its processes have ended.
    """
    stages = (
        (Race.begin_to_compile, True),
        (Race.set_up, False),
        (Race.end_compiling, True),
        (Race.take_rounds, False),
        (Race.profile, False),
        (Race.end_training, True),
        (Race.compare_bits, True),
    )
    names = " ".join(race.name for race in races)
    try:
        for stage, is_side_by_side in stages:
            start = perf_counter()
            with ThreadPoolExecutor(len(races) if is_side_by_side else 1) as threads:
                # Lists, so that errors are raised.
                list(threads.map(stage, races))
            took = f"{stage.__name__.replace('_', ' ')} took {perf_counter() - start:.1f} s"
            tell(f"{names}: {took}")
    finally:
        for race in races:
            race.close()


def reason_to_leave_out(variant: str, options: Options) -> str | None:
    """Return why a variant is not run, None if it is."""
    if variant in GPU_ONLY and not find_device(options.device).is_accelerator:
        return "it needs a GPU"
    if variant == IN_PLACE and not hasattr(gapless, "release"):
        return "this version has no capture in place"
    return None


def times_of(entrant: Entrant, steps: int) -> dict[str, Any]:
    """Return speed, spread, device busy share and seconds until the first fast step."""
    seconds = [turn["seconds"] for turn in entrant.turns]
    found: dict[str, Any] = {
        "steps_per_s": steps / median(seconds),
        "middle_half": sorted(steps / value for value in middle(seconds)),
        "seconds": seconds,
        "first_fast_s": first_fast(entrant.first, median(seconds) / steps),
    }
    if "waits" in entrant.found:
        found["waits_per_step"] = entrant.found["waits"] / steps
    if "busy_ms" in entrant.found:
        found["busy"] = entrant.found["busy_ms"] / 1000.0 / median(seconds)
    return found


def first_fast(epochs: list[dict[str, Any]], step_s: float) -> float | None:
    """Return the seconds of training until the end of the first fast step; None if there is none.

    Args:
        epochs: the first, with `marks`, when each step began, and `end`, both in seconds since the
            epoch began; that of the first begins with the script.
        step_s: seconds of a later step.
    """
    before = 0.0
    for epoch in epochs:
        # The last step is left out: an evaluation may follow it.
        marks = epoch["marks"]
        lengths = [end - start for start, end in pairwise(marks)]
        for number, length in enumerate(lengths):
            run = lengths[number : number + _RUN_OF_STEPS]
            if sum(run) <= _FAST * step_s * len(run) and length <= 2 * _FAST * step_s:
                return before + marks[number + 1]
        before += epoch["end"]
    return None


def middle(values: list[float]) -> list[float]:
    """Return the ends of the middle half."""
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [low, high]
