"""All variants of a script, each in a process of its own, which take turns."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import tempfile
import threading
from dataclasses import dataclass, field
from inspect import signature
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gapless
from benchmarks.launch_bound import worker
from benchmarks.launch_bound.variants import (
    AS_WRITTEN,
    CUDA_GRAPH_MODULE,
    GPU_ONLY,
    IN_PLACE,
    WHOLE_STEP,
    WHOLE_STEP_COMPILED,
    changed_lines,
)
from gapless.device.find import find_device


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# A step is fast if it, with those behind it, takes at most so many times as long as later ones.
_FAST = 1.25
_RUN_OF_STEPS = 5

# Variants of which the first minute is shown.
SHOWN_FROM_THE_FIRST = (AS_WRITTEN, IN_PLACE, WHOLE_STEP)

_SECONDS_TO_END = 10.0
# Of a report, in the file.
_LONGEST_TEXT = 400
# Others wait meanwhile.
_TURN_LIMIT_S = 45.0
# How often it is seen whether the time is over.
_LOOK_S = 0.5


class Deadline:
    """When all is over.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float = float("inf")) -> None:
        self.end = perf_counter() + seconds

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - perf_counter()


@dataclass(frozen=True, kw_only=True)
class Options:
    """How variants are measured.

    Attributes:
        device: name of the device.
        is_small: whether sizes are for a CPU.
        setup_limit: seconds after which a variant is given up that has not ended its first epochs.
        folder: of the files that processes print to.
        rounds: turns of each variant.
        turn_s: seconds of a turn at least, in whole epochs.
        first_s: seconds of the first epochs at least, which are measured alone; 0: not alone.
        warm_s: seconds that all variants train on at once, before the turns.
        cores: which turns have, and which all else.
        checks: variants whose bits and changes are checked.
        has_small_checks: whether they are made on small models, which compile sooner.
        check_s: seconds after which checks of a script are given up.
        is_changing: whether batches have shapes that change.
        num_workers: of each loader.
        deadline: of all.
    """

    device: str
    is_small: bool
    setup_limit: float
    folder: Path
    rounds: int = 3
    turn_s: float = 0.0
    first_s: float = 0.0
    warm_s: float = 0.0
    cores: worker.Cores = field(default_factory=worker.Cores)
    checks: tuple[str, ...] = ()
    has_small_checks: bool = False
    check_s: float = 120.0
    is_changing: bool = False
    num_workers: int = 4
    deadline: Deadline = field(default_factory=Deadline)


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
        self.is_over = False
        self.turns: list[dict[str, Any]] = []
        self.first: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {}
        self._limit, self._deadline = options.setup_limit, options.deadline
        self._cache = tempfile.TemporaryDirectory(prefix="compiled-")
        log = options.folder / f"{task.name}-{task.variant}.log"
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(
            target=worker.work, args=(other, task, str(log)), daemon=False
        )
        with _ENVIRONMENT:
            before = dict(os.environ)
            # A compiler that finds what another process has compiled would look quick.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._cache.name
            # Read when cuBLAS is first used, and needed later for deterministic algorithms.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            try:
                self._process.start()
            finally:
                os.environ.clear()
                os.environ.update(before)
        other.close()

    def tell(self, command: str, seconds: float = 0.0) -> None:
        """Send a command, and for how many seconds it is."""
        try:
            self._connection.send((command, seconds))
        except OSError:
            self._fail(f"its process ended with exit code {self._process.exitcode}")

    def answer(self, limit: float | None = None) -> dict[str, Any]:
        """Return the answer to the command before.

        Args:
            limit: seconds to wait for it; None: those of a setup.

        Raises:
            VariantError: it failed, or did not answer in time.
        """
        if self.problem is None:
            try:
                if not self._has_answer(self._limit if limit is None else limit):
                    self._fail("no answer in time")
                else:
                    found: dict[str, Any] = self._connection.recv()
                    if "problem" not in found:
                        return found
                    self._fail(found["problem"])
            except (EOFError, OSError):
                self._process.join(5.0)
                self._fail(f"its process ended with exit code {self._process.exitcode}")
        raise VariantError(self.problem)

    def _has_answer(self, limit: float) -> bool:
        end = min(perf_counter() + limit, self._deadline.end)
        while (left := end - perf_counter()) > 0:
            if self._connection.poll(min(left, _LOOK_S)):
                return True
            # It may have been moved meanwhile.
            end = min(end, self._deadline.end)
        return self._connection.poll(0)

    def ask(self, command: str, seconds: float = 0.0) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            VariantError: as `answer`.
        """
        if self.problem is None:
            self.tell(command, seconds)
        return self.answer()

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.close()

    def close(self) -> None:
        """End the process, and remove what its compiler left."""
        if self.is_over:
            return
        self.is_over = True
        self._connection.close()
        if self.problem is None and self._deadline.left() > 0:
            self._process.join(_SECONDS_TO_END)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(2.0)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._cache.cleanup()


# Processes of several races are started by several threads, with an environment each.
_ENVIRONMENT = threading.Lock()


class Race:
    """Measures the variants of one script.

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
        self._turn_limit = options.turn_s + _TURN_LIMIT_S
        self._first_limit = options.first_s + options.setup_limit
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
            is_changing=self.options.is_changing,
            has_small_checks=self.options.has_small_checks,
            num_workers=self.options.num_workers,
            cores=self.options.cores,
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

    def run(self, alone: threading.Lock, write: Callable[[], None]) -> None:
        """Take all variants through their first epochs, turns and checks.

        Args:
            alone: is held while time is measured, so that scripts beside this one only compile, load and
                check meanwhile.
            write: is called whenever more is known.
        """
        self.set_up(alone)
        with alone:
            self.warm_up()
            self.take_rounds()
        write()
        self.end_training()
        write()
        self.check()
        write()
        for entrant in self._running():
            entrant.tell(worker.QUIT)

    def set_up(self, alone: threading.Lock) -> None:
        """Train the first epochs: alone, if the first minute is measured; else beside others."""
        for entrant in self._running():
            self._attempt(entrant, entrant.answer)
        shown = SHOWN_FROM_THE_FIRST if self.options.first_s else ()
        running = self._running()
        beside = [one for one in running if one.variant not in shown]
        for entrant in beside:
            entrant.tell(worker.FIRST)
        for entrant in running:
            if entrant not in beside:
                with alone:
                    entrant.tell(worker.FIRST, self.options.first_s)
                    self._end_first(entrant)
        for entrant in beside:
            self._end_first(entrant)

    def _end_first(self, entrant: Entrant) -> None:
        found = self._attempt(entrant, lambda: entrant.answer(self._first_limit))
        if found is not None:
            entrant.first = [found]
            self.tell(f"{self.name}: {entrant.variant}: first epoch in {found['end']:.1f} s")

    def warm_up(self) -> None:
        """Train on, all at once."""
        running = self._running()
        for entrant in running:
            entrant.tell(worker.FIRST, self.options.warm_s)
        for entrant in running:
            limit = self.options.warm_s + _TURN_LIMIT_S
            self._attempt(entrant, lambda one=entrant, limit=limit: one.answer(limit))

    def take_rounds(self) -> None:
        """Let each have its turn; every round begins with another one."""
        for number in range(self.options.rounds):
            entrants = self._running()
            first = number % max(len(entrants), 1)
            for entrant in entrants[first:] + entrants[:first]:
                entrant.tell(worker.TIMED, self.options.turn_s)
                found = self._attempt(entrant, lambda one=entrant: one.answer(self._turn_limit))
                if found is not None:
                    entrant.turns.append(found)
        speeds = "  ".join(
            f"{entrant.variant} {steps_per_s(entrant.turns):.1f}"
            for entrant in self._running()
            if entrant.turns
        )
        self.tell(f"{self.name}: {speeds} steps/s")

    def end_training(self) -> None:
        """End the trainings, side by side."""
        running = self._running()
        for entrant in running:
            entrant.tell(worker.END)
        for entrant in running:
            found = self._attempt(entrant, entrant.answer)
            if found is not None:
                entrant.found["memory"] = found["memory"]
                entrant.found["reports"] = [
                    {**report, "text": report["text"][:_LONGEST_TEXT]}
                    for report in found["reports"]
                ]

    def check(self) -> None:
        """Compare bits and make changes, all side by side."""
        chosen = [one for one in self._running() if one.variant in self.options.checks]
        end = perf_counter() + self.options.check_s
        for entrant in chosen:
            entrant.tell(worker.CHECK)
        for entrant in chosen:
            is_last = False
            while not is_last:
                # What is not known in time is left out: the rest of the row stands.
                try:
                    found = entrant.answer(max(0.0, end - perf_counter()))
                except VariantError as problem:
                    self.tell(f"{self.name}: {entrant.variant}: checks: {problem}")
                    entrant.found["unchecked"], entrant.problem = str(problem), None
                    break
                entrant.found |= found["checks"]
                is_last = found["is_last"]
        checks = {one.variant: one.found for one in chosen}
        told = ("bits", "weight", "rate", "attribute")
        for variant, found in checks.items():
            known = "  ".join(f"{key}: {found[key]}" for key in told if key in found)
            self.tell(f"{self.name}: {variant}: {known}")

    def _running(self) -> list[Entrant]:
        return [entrant for entrant in self.entrants.values() if not entrant.is_over]

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
            found |= times_of(entrant)
        return found


def reason_to_leave_out(variant: str, options: Options) -> str | None:
    """Return why a variant is not run, None if it is."""
    if variant in GPU_ONLY and not find_device(options.device).is_accelerator:
        return "it needs a GPU"
    if variant == CUDA_GRAPH_MODULE and importlib.util.find_spec("tensordict") is None:
        return "it needs tensordict"
    if variant == WHOLE_STEP_COMPILED and "compile" not in signature(gapless.capture).parameters:
        return "this version has no compile=True"
    return None


def steps_per_s(turns: list[dict[str, Any]]) -> float:
    """Return the median of several turns."""
    return median(turn["steps"] / turn["seconds"] for turn in turns)


def times_of(entrant: Entrant) -> dict[str, Any]:
    """Return speed, spread, seconds until the first fast step, and what the first epochs took."""
    speeds = [turn["steps"] / turn["seconds"] for turn in entrant.turns]
    return {
        "steps_per_s": median(speeds),
        "middle_half": middle(speeds),
        "first_fast_s": first_fast(entrant.first, 1.0 / median(speeds)),
        "first": {
            "steps": sum(found["steps"] for found in entrant.first),
            "seconds": sum(found["end"] for found in entrant.first),
        },
        "turns": [[turn["steps"], turn["seconds"]] for turn in entrant.turns],
    }


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
