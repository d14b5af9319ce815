"""One process, which trains one variant of a script in turns, and measures what it is told to."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import torch

from benchmarks.launch_bound.args import Args
from benchmarks.launch_bound.bits import Captured
from benchmarks.launch_bound.checks import checked
from benchmarks.launch_bound.variants import AS_WRITTEN, COMPILED, EQUAL_EDITS, load
from benchmarks.processes import fork_loader_workers
from gapless.device.find import find_device
from gapless.device.numerics import seed_generators


if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from gapless.device.base import Device


# What epochs are run for.
FIRST = "first"
TIMED = "timed"
END = "end"

# What comes after the training.
CHECK = "check"
QUIT = "quit"

# Of a turn, before its clock begins.
_LEAD_IN_S = 0.3

# Cores that only what is timed runs on, where there are so many; it has them alone with its threads.
_QUIET_CORES = 4
_ENOUGH_CORES = 12


@dataclass(frozen=True)
class Cores:
    """Which cores turns have for themselves, and which all else has: none, where there are few."""

    of_turns: frozenset[int] = frozenset()
    of_others: frozenset[int] = frozenset()

    @classmethod
    def here(cls) -> Cores:
        """Share those of this process."""
        all_cores = sorted(os.sched_getaffinity(0))
        if len(all_cores) < _ENOUGH_CORES:
            return cls()
        return cls(frozenset(all_cores[:_QUIET_CORES]), frozenset(all_cores[_QUIET_CORES:]))

    def take(self, cores: frozenset[int]) -> None:
        """Let all threads of this process run there."""
        for thread in Path("/proc/self/task").iterdir() if cores else ():
            # It may have ended.
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), cores)

    @contextmanager
    def of_a_turn(self) -> Iterator[None]:
        """Have the quiet cores in the body."""
        self.take(self.of_turns)
        try:
            yield
        finally:
            self.take(self.of_others)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a process is started for.

    Attributes:
        name: of the script.
        variant: of the script.
        device: name of the device.
        steps: of an epoch.
        is_small: whether sizes are for a CPU.
        is_changing: whether batches have shapes that change.
        has_small_checks: whether bits are checked on a small model.
        num_workers: of each loader.
        cores: which turns have, and which all else.
    """

    name: str
    variant: str
    device: str
    steps: int
    is_small: bool
    is_changing: bool = False
    has_small_checks: bool = False
    num_workers: int = 4
    cores: Cores = field(default_factory=Cores)

    def settings(self) -> dict[str, Any]:
        """Return those of the script's arguments."""
        return {
            "steps": self.steps,
            "is_small": self.is_small,
            "is_changing": self.is_changing,
            "num_workers": self.num_workers,
        }


class Worker:
    """Trains; answers each command of the parent, which has a number of seconds beside it.

    Args:
        connection: to the parent.
        work: what is trained.
    """

    def __init__(self, connection: Connection, work: Work) -> None:
        self.connection = connection
        self.work = work
        self.device: Device = find_device(work.device)
        self._is_leading_in = False
        self.args = Args(
            device=self.device.torch_device,
            turns=self,
            before_step=self._before_step,
            **work.settings(),
        )

    def run(self) -> None:
        """Train for as long as epochs are asked for, and then check the bits."""
        self._train()
        if self.work.variant in COMPILED:
            torch.compiler.reset()
        while (command := self.connection.recv()[0]) != QUIT:
            if command != CHECK:
                raise ValueError(f"unknown command {command!r}")
            settings = {"device": self.device, **self.work.settings()}
            settings["is_small"] |= self.work.has_small_checks
            for found in checked(self.work.name, self.work.variant, settings):
                self._answer({"checks": found, "is_last": False})
            self._answer({"checks": {}, "is_last": True})

    def _train(self) -> None:
        with Captured() as captured:
            module = load(self.work.name, self.work.variant)
            if self.device.is_accelerator:
                # The start of CUDA is the same for all, and not what is measured.
                torch.zeros(1, device=self.args.device)
            self._answer({"steps": self.work.steps})
            self._wait_for_turn()
            seed_generators(1)
            # From here on everything counts: the model, its compiler, its graphs.
            self.start = perf_counter()
            module.train(self.args)
            reports = captured.reports()
        self._answer({"memory": self._peak_memory(), "reports": reports})

    def epochs(self) -> Iterator[int]:
        """Yield the number of an epoch: one for each command, and more until its seconds are over."""
        number, command = 0, (FIRST, self._first_seconds)
        while command[0] != END:
            kind, seconds = command
            self.args.marks.clear()
            self._synchronize()
            began = self.start if number == 0 else perf_counter()
            with self.work.cores.of_a_turn() if kind == TIMED else nullcontext():
                self._begin_lead_in(seconds if kind == TIMED else 0.0)
                is_over = False
                while not is_over:
                    yield number
                    number += 1
                    is_over = perf_counter() >= began + seconds
                self._synchronize()
                found = {"kind": kind, "seconds": self._clock.seconds()}
            found["steps"] = len(self.args.marks) - self._num_led_in
            found["marks"] = [mark - began for mark in self.args.marks if kind == FIRST]
            found["end"] = perf_counter() - began
            self._answer(found)
            command = self.connection.recv()

    def _begin_lead_in(self, seconds: float) -> None:
        """Let the clock begin a little later: behind a pause, what is captured is looked at anew."""
        is_captured = self.work.variant not in (AS_WRITTEN, EQUAL_EDITS)
        self._lead_in_end = perf_counter() + (min(_LEAD_IN_S, seconds / 3) if is_captured else 0.0)
        self._num_led_in, self._clock = 0, Clock(self.device)
        self._is_leading_in = is_captured and seconds > 0

    def _before_step(self, number: int) -> None:
        if self._is_leading_in and perf_counter() >= self._lead_in_end:
            self._is_leading_in = False
            self._synchronize()
            self._num_led_in, self._clock = number, Clock(self.device)

    def _wait_for_turn(self) -> None:
        kind, self._first_seconds = self.connection.recv()
        if kind != FIRST:
            raise ValueError(f"the first epoch was asked for as {kind!r}")

    def _answer(self, found: dict[str, Any]) -> None:
        self.connection.send(found)

    def _synchronize(self) -> None:
        if self.device.is_accelerator:
            torch.cuda.synchronize(self.device.torch_device)

    def _peak_memory(self) -> dict[str, int] | None:
        if not self.device.is_accelerator:
            return None
        return {
            "allocated": torch.cuda.max_memory_allocated(self.device.torch_device),
            "reserved": torch.cuda.max_memory_reserved(self.device.torch_device),
        }


class Clock:
    """Measures from an idle device to an idle device, by events where there are any."""

    def __init__(self, device: Device) -> None:
        self._has_events = device.is_accelerator
        self._start = self._now()

    def seconds(self) -> float:
        """Return the seconds since it was made."""
        end = self._now()
        if not self._has_events:
            return end - self._start
        end.synchronize()
        return self._start.elapsed_time(end) / 1000.0

    def _now(self) -> Any:
        if not self._has_events:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def work(connection: Connection, task: Work, log: str) -> None:
    """Do the work of a process; what fails is told to the parent.

    Args:
        connection: to the parent.
        task: what is trained.
        log: file for what the script and its compiler print.
    """
    with open(log, "w", encoding="utf-8", buffering=1) as file:  # noqa: PTH123
        _redirect(file)
        task.cores.take(task.cores.of_others)
        fork_loader_workers()
        torch.set_num_threads(1)
        try:
            Worker(connection, task).run()
        except Exception as error:
            traceback.print_exc()
            first_line = str(error).strip().split("\n")[0]
            connection.send({"problem": f"{type(error).__name__}: {first_line}"})


def _redirect(file: TextIO) -> None:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
