"""A row in a process of its own: frameworks cannot disturb each other, and one can be ended.

The process waits for commands; while it waits, nothing of it runs on host or device.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.peers.cases import Case
from benchmarks.processes import fork_loader_workers
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.peers.cases import CaseFile
    from benchmarks.peers.parts import Peer
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import Microbatch

    Maker = Callable[[Case, Device], Peer]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Steps that a row is asked to run.

    Attributes:
        warmup: steps before the timed ones.
        steps: timed steps.
        first: number of the first batch.
        profiled: watch the kernels instead of timing.
        trace: file for what was watched; None: it is not kept.
    """

    warmup: int
    steps: int
    first: int
    profiled: bool = False
    trace: Path | None = None


_SECONDS_TO_END = 5.0

# Kernels of a profile that are kept by name.
_COSTLIEST = 10


class RowError(Exception):
    """A row failed or took too long; the message says so in one line."""


class RowProcess:
    """The process of one row, started at once, with its set-up under way.

    Args:
        make: builds what the process trains; sent to the process, so a function of a module.
        case: to train on, or the file that has it.
        device: name of the device.
        log: file for whatever the frameworks print.

    Attributes:
        channel: has something to read when the process is done with what it was asked.
    """

    def __init__(self, make: Maker, *, case: Case | CaseFile, device: str, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self._log = log
        self._started_at = perf_counter()
        self._process = context.Process(target=_serve, args=(theirs, make, case, device, log))
        self._process.start()
        theirs.close()

    def wait_ready(self, *, limit_s: float) -> dict[str, Any]:
        """Return facts of the set-up, `limit_s` seconds after the start at the latest.

        Raises:
            RowError: it failed, or did not finish in time.
        """
        left = self._started_at + limit_s - perf_counter()
        return self._answer(timeout_s=max(0.0, left), what="set-up", limit_s=limit_s)

    def run(self, order: Order, *, limit_s: float) -> dict[str, Any]:
        """Return what the row measured.

        Raises:
            RowError: it failed, or did not finish in time.
        """
        self.send(order)
        return self._answer(timeout_s=limit_s, what=f"{order.steps} steps", limit_s=limit_s)

    def send(self, order: Order) -> None:
        """Let the row begin; `receive` returns what it measured.

        Raises:
            RowError: its process has ended.
        """
        try:
            self.channel.send(order)
        except OSError:
            raise RowError(f"ended between its turns; see {self._log}") from None

    def _answer(self, *, timeout_s: float, what: str, limit_s: float) -> dict[str, Any]:
        if not self.channel.poll(timeout_s):
            self.kill()
            raise RowError(f"did not finish its {what} in {limit_s:.0f} s")
        return self.receive(what)

    def receive(self, what: str) -> dict[str, Any]:
        """Return what the row tells when it is done.

        Args:
            what: it does, for messages.

        Raises:
            RowError: it failed.
        """
        try:
            answer: dict[str, Any] = self.channel.recv()
        except (EOFError, ConnectionError):
            self.end()
            raise RowError(f"ended during its {what}; see {self._log}") from None
        if "error" in answer:
            self.end()
            raise RowError(f"failed in its {what}: {answer['error']}; see {self._log}")
        return answer

    def let_go(self) -> None:
        """Tell the process to end by itself, and to take its temporary files along."""
        self.channel.close()

    def end(self) -> None:
        """End the process with all of its own: loader workers, compilers."""
        self.let_go()
        self._process.join(_SECONDS_TO_END)
        self.kill()

    def kill(self) -> None:
        """End the process at once, with all of its own."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _serve(
    channel: Connection, make: Maker, case: Case | CaseFile, device: str, log: Path
) -> None:
    # A group of its own, so that it can be ended with its children; Ctrl-C is the parent's.
    os.setpgrp()
    _print_to(log)
    fork_loader_workers()
    try:
        case = case if isinstance(case, Case) else case.read()
        peer, resolved = _set_up(make, case, device, channel)
        while True:
            order = channel.recv()
            channel.send(_run(peer, resolved, case, order))
    except EOFError:
        return
    except BaseException as error:
        traceback.print_exc()
        first_line = str(error).strip().split("\n")[0]
        channel.send({"error": f"{type(error).__name__}: {first_line}"})


def _print_to(log: Path) -> None:
    warnings.filterwarnings("ignore")
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())


def _set_up(make: Maker, case: Case, name: str, channel: Connection) -> tuple[Peer, Device]:
    from benchmarks.peers.window import start_device

    start = perf_counter()
    device = find_device(name)
    set_numerics(device, case.config.precision, deterministic=False)
    start_device(device)
    peer = make(case, device)
    peer.setup()
    channel.send(
        {
            "setup_seconds": perf_counter() - start,
            "loader_workers": multiprocessing.get_start_method(),
            # Padded or packed in a way of its own, its steps hold other pairs than those of peers.
            "own_layout": _pairs(peer.batches) != _pairs(case.plain_batches()),
            **getattr(peer, "setup_facts", {}),
        }
    )
    return peer, device


def _pairs(batches: Sequence[Microbatch]) -> list[list[int]]:
    return [micro.pairs.tolist() for micro in batches]


def _run(peer: Peer, device: Device, case: Case, order: Order) -> dict[str, Any]:
    from benchmarks.peers.parts import take
    from benchmarks.peers.profiling import KernelTimes, watch_kernels
    from benchmarks.peers.window import Window

    kernels = KernelTimes()
    around = partial(watch_kernels, kernels, trace=order.trace) if order.profiled else nullcontext
    window = Window(device=device, warmup=order.warmup, steps=order.steps, around=around)
    if device.is_accelerator:
        device.reset_peak_memory()
    peer.run(window, first=order.first)
    timed = take(peer.batches, order.steps, first=order.first + order.warmup)
    answer = {
        "steps": order.steps,
        "seconds": window.seconds,
        "seconds_before": window.seconds_before,
        "loss": window.loss,
        "peak_memory_bytes": device.peak_memory_bytes() if device.is_accelerator else 0,
        "held_memory_bytes": device.reserved_memory_bytes() if device.is_accelerator else 0,
        **case.count(timed),
        **window.facts,
    }
    if order.profiled:
        answer["kernels_per_step"] = kernels.num_kernels / order.steps
        answer["busy_ms_per_step"] = kernels.busy_ms / order.steps
        answer["costliest_kernels"] = kernels.costliest(_COSTLIEST)
        answer["compute_ms_per_step"] = kernels.compute_ms / order.steps
        answer["collectives"] = kernels.collectives
    return answer
