"""The ranks of a row, each in a process of its own with the environment that torchrun gives."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import TCPStore

from benchmarks.peers.worker import RowError, RowProcess
from benchmarks.ranks.rows import make_rank


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.peers.cases import Case, CaseFile
    from benchmarks.peers.parts import Peer
    from benchmarks.peers.window import Window
    from benchmarks.peers.worker import Order
    from benchmarks.ranks.rows import RankRow
    from gapless.device.base import Device


# When one rank has failed, another may be able to say more.
_SECONDS_FOR_OTHERS = 3.0


class RowGroup:
    """The processes of one row, with their set-up under way.

    Args:
        row: that they are.
        case: file of what they train on.
        devices: name of each rank's device.
        logs: folder for what frameworks print, and for traces.
        keeps_traces: whether the traces of profiles are kept.
    """

    def __init__(
        self,
        row: RankRow,
        *,
        case: CaseFile,
        devices: Sequence[str],
        logs: Path,
        keeps_traces: bool = False,
    ) -> None:
        self._name, self._logs, self._keeps_traces = row.name, logs, keeps_traces
        world = len(devices)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started_at = perf_counter()
        self._ranks = [
            RowProcess(
                partial(
                    _make_rank,
                    name=row.name,
                    environment=_of_torchrun(rank, world, self._store.port) if world > 1 else {},
                ),
                case=case,
                device=device,
                log=logs / f"{row.name}-{rank}.log",
            )
            for rank, device in enumerate(devices)
        ]

    def wait_ready(self, *, limit_s: float) -> dict[str, Any]:
        """Return facts of the set-up, those of rank 0 with the longest time.

        Raises:
            RowError: it failed on a rank, or is not done in time.
        """
        left = self._started_at + limit_s - perf_counter()
        answers = self._answers("set-up", timeout_s=left, limit_s=limit_s)
        return {**answers[0], "setup_seconds": max(one["setup_seconds"] for one in answers)}

    def run(self, order: Order, *, limit_s: float) -> dict[str, Any]:
        """Return what all ranks measured together.

        Raises:
            RowError: a rank failed, or is not done in time.
        """
        try:
            for number, rank in enumerate(self._ranks):
                rank.send(self._own(order, number))
        except RowError:
            self.end()
            raise
        return together(self._answers(f"{order.steps} steps", timeout_s=limit_s, limit_s=limit_s))

    def _own(self, order: Order, rank: int) -> Order:
        if not (self._keeps_traces and order.profiled):
            return order
        return replace(order, trace=self._logs / f"{self._name}-{rank}.trace.json.gz")

    def let_go(self) -> None:
        """Tell the processes to end by themselves."""
        for rank in self._ranks:
            rank.let_go()

    def end(self) -> None:
        """End all processes at once: ranks that leave one by one may wait for each other."""
        self.let_go()
        for rank in self._ranks:
            rank.kill()

    def _answers(self, what: str, *, timeout_s: float, limit_s: float) -> list[dict[str, Any]]:
        end = perf_counter() + timeout_s
        answers: dict[int, dict[str, Any]] = {}
        errors: list[str] = []
        missing = {rank.channel: number for number, rank in enumerate(self._ranks)}
        while missing:
            ready: list[Any] = wait(list(missing), timeout=max(0.0, end - perf_counter()))
            if not ready:
                break
            for channel in ready:
                number = missing.pop(channel)
                try:
                    answers[number] = self._ranks[number].receive(what)
                except RowError as error:
                    of_rank = f"rank {number} " if len(self._ranks) > 1 else ""
                    errors.append(f"{of_rank}{error}")
                    end = min(end, perf_counter() + _SECONDS_FOR_OTHERS)
        if errors or missing:
            self.end()
            # That a rank ended may follow from the failure of another.
            errors.sort(key=lambda text: "failed in" not in text)
            raise RowError(next(iter(errors), f"did not finish its {what} in {limit_s:.0f} s"))
        return [answers[number] for number in range(len(self._ranks))]


def together(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all ranks measured as one: the slowest counts, and tokens are those of all."""
    found = dict(answers[0])
    for name in ("sentences", "source_tokens", "target_tokens", "model_flops"):
        found[name] = sum(one[name] for one in answers)
    for name in ("seconds", "seconds_before", "peak_memory_bytes", "held_memory_bytes"):
        found[name] = max(one[name] for one in answers)
    if "compute_ms_per_step" in found:
        found["compute_ms_per_step"] = max(one["compute_ms_per_step"] for one in answers)
    found["padding_share"] = fmean(one["padding_share"] for one in answers)
    found["loss"] = fmean(one["loss"] for one in answers)
    found["seconds_of_ranks"] = [one["seconds"] for one in answers]
    if "collectives" in found:
        found |= communication([one["collectives"] for one in answers], steps=found["steps"])
        del found["collectives"]
    return found


def communication(
    of_ranks: Sequence[Sequence[tuple[float, float]]], *, steps: int
) -> dict[str, Any]:
    """Return the kernels of NCCL in a step, their time, and the part that nothing hides, in ms.

    Without such kernels there are no times.
    A kernel waits on the ranks that came early, so of each the rank counts that waited least.

    Args:
        of_ranks: for each rank the time of each kernel, and the exposed part of it.
        steps: in which they ran.
    """
    found: dict[str, Any] = {
        "collectives_per_step": len(of_ranks[0]) / steps,
        "collective_ms_per_step": None,
        "traced_exposed_ms_per_step": None,
    }
    if len({len(kernels) for kernels in of_ranks}) > 1 or not of_ranks[0]:
        return found
    least = [
        (min(ms for ms, _ in one), min(exposed for _, exposed in one))
        for one in zip(*of_ranks, strict=True)
    ]
    found["collective_ms_per_step"] = sum(ms for ms, _ in least) / steps
    found["traced_exposed_ms_per_step"] = sum(exposed for _, exposed in least) / steps
    return found


def _of_torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    """Return the environment that torchrun gives to a rank on one host."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _make_rank(case: Case, device: Device, *, name: str, environment: dict[str, str]) -> Peer:
    os.environ |= environment
    device.make_current()
    return _Tidy(make_rank(case, device, name=name), device)


class _Tidy:
    """A rank that keeps no memory between its turns but that of graphs, since other rows need it.

    Args:
        peer: that does the work.
        device: of the rank.
    """

    def __init__(self, peer: Peer, device: Device) -> None:
        self._peer = peer
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def run(self, window: Window, *, first: int) -> None:
        """Train; the first steps, which are not timed, take the memory anew."""
        self._peer.run(window, first=first)
        if self._device.is_accelerator:
            torch.cuda.empty_cache()
