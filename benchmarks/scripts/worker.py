"""One process, which trains one variant of a script in turns, and measures what it is told to."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import torch

import gapless
from benchmarks.peers.profiling import KernelTimes, watch_kernels
from benchmarks.processes import fork_loader_workers
from benchmarks.scripts.args import Args
from benchmarks.scripts.bits import Captured, capture_off, trained
from benchmarks.scripts.variants import COMPILED, load
from gapless.device.find import find_device
from gapless.device.numerics import seed_generators


if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from gapless.device.base import Device


# What an epoch is run for.
FIRST = "first"
TIMED = "timed"
WAITS = "waits"
PROFILE = "profile"
END = "end"

# What comes after the training.
BITS = "bits"
BITS_CAPTURE_OFF = "bits, capture off"
QUIT = "quit"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a process is started for.

    Attributes:
        name: of the script.
        variant: of the script.
        device: name of the device.
        steps: of an epoch.
        is_small: whether sizes are for a CPU.
    """

    name: str
    variant: str
    device: str
    steps: int
    is_small: bool


class Worker:
    """Trains; answers each command of the parent.

    Args:
        connection: to the parent.
        work: what is trained.
    """

    def __init__(self, connection: Connection, work: Work) -> None:
        self.connection = connection
        self.work = work
        self.device: Device = find_device(work.device)
        self.args = Args(
            device=self.device.torch_device,
            steps=work.steps,
            is_small=work.is_small,
            turns=self,
        )

    def run(self) -> None:
        """Train for as long as epochs are asked for, and then for the bits."""
        self._train()
        self._compare_bits()

    def _train(self) -> None:
        with Captured() as captured:
            module = load(self.work.name, self.work.variant)
            self._answer({"steps": self.work.steps})
            # Everything up to the first fast step counts: the model, its compiler, its graphs.
            self._wait_for_turn()
            seed_generators(1)
            self.start = perf_counter()
            module.train(self.args)
            reports = captured.reports()
        self._answer({"memory": self._peak_memory(), "reports": reports})

    def epochs(self) -> Iterator[int]:
        """Yield the number of an epoch for each that is asked for."""
        number, began = 0, self.start
        while True:
            kind = FIRST if number == 0 else self.connection.recv()
            if kind == END:
                return
            if number > 0:
                began = perf_counter()
            with self._measured(kind) as found:
                yield number
            found["marks"] = [mark - began for mark in self.args.marks] if kind == FIRST else []
            found["end"] = perf_counter() - began
            self._answer(found)
            number += 1

    def _wait_for_turn(self) -> None:
        kind = self.connection.recv()
        if kind != FIRST:
            raise ValueError(f"the first epoch was asked for as {kind!r}")

    def _answer(self, found: dict[str, Any]) -> None:
        self.connection.send(found)

    @contextmanager
    def _measured(self, kind: str) -> Iterator[dict[str, Any]]:
        found: dict[str, Any] = {"kind": kind}
        self.args.marks.clear()
        times = KernelTimes()
        profiles = kind == PROFILE and self.device.is_accelerator
        watch = watch_kernels(times) if profiles else nullcontext()
        count = gapless.count_waits(self.device) if kind == WAITS else nullcontext()
        self._synchronize()
        with watch:
            clock = Clock(self.device)
            with count as waits:
                yield found
            # Not counted: the loop does not wait here.
            self._synchronize()
            found["seconds"] = clock.seconds()
        if kind == WAITS:
            found["waits"] = waits.count
            found["sites"] = [
                f"{site}: {what}, {number}"
                for (what, site), number in waits.by_site.most_common(8)
            ]
        if profiles:
            found["busy_ms"], found["kernels"] = times.busy_ms, times.num_kernels

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

    def _compare_bits(self) -> None:
        if self.work.variant in COMPILED:
            torch.compiler.reset()
        while (command := self.connection.recv()) != QUIT:
            if command not in (BITS, BITS_CAPTURE_OFF):
                raise ValueError(f"unknown command {command!r}")
            context = capture_off() if command == BITS_CAPTURE_OFF else nullcontext()
            with context:
                found = trained(
                    self.work.name,
                    self.work.variant,
                    device=self.device,
                    steps=self.work.steps,
                    is_small=self.work.is_small,
                )
            self._answer({"bits": found})


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
        fork_loader_workers()
        if task.is_small:
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
