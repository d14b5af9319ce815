"""A run of `gapless train` that a benchmark watches, kills and resumes: its processes, memory and losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.nmt.run_folder.logs import METRICS


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_LOOKS_EVERY = 0.05


class TrainingCommand:
    """A command of gapless that trains, in a session of its own. What it prints is in `RUN.log`.

    Args:
        arguments: of `gapless train`.
        run: its folder.
        ranks: several start under torchrun.

    Attributes:
        first: seconds until the loss of its first update was in the metrics.
    """

    def __init__(self, arguments: Sequence[object], run: Path, *, ranks: int = 1) -> None:
        self.first, self._start = float("nan"), time.perf_counter()
        self._metrics, self._log = run / METRICS, run.with_suffix(".log")
        self._smallest = self._size()
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, *launcher(ranks), "-m", "gapless", "train", *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def seconds(self) -> float:
        """Return how long ago it was started."""
        return time.perf_counter() - self._start

    def until(self, happened: Callable[[], bool] = lambda: False) -> bool:
        """Look at the command until something has happened, or it has ended well; return whether it runs."""
        while self._process.poll() is None and not happened():
            if self.first != self.first:
                self._look_for_first()
            time.sleep(_LOOKS_EVERY)
        if self._process.returncode:
            raise SystemExit(f"{self._log}: exit code {self._process.returncode}")
        return self._process.returncode is None

    def terminate(self) -> int:
        """Ask it to end by SIGTERM; return its exit code."""
        self._process.terminate()
        return self._process.wait()

    def kill(self) -> None:
        """End it and all its processes by SIGKILL, if it has not ended."""
        if self._process.poll() is not None:
            return
        # Ranks have sessions of their own. Once all have stopped, none can start another.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in processes_of(self.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()

    def _look_for_first(self) -> None:
        # A resumed command cuts its metrics to what was saved, and then appends.
        size = self._size()
        if size > self._smallest:
            self.first = self.seconds()
        self._smallest = min(self._smallest, size)

    def _size(self) -> int:
        return self._metrics.stat().st_size if self._metrics.exists() else 0


def launcher(ranks: int) -> list[str]:
    """Return what stands between Python and `-m gapless` where several processes train."""
    if ranks == 1:
        return []
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def processes_of(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def memory_of(pid: int, file: str) -> dict[str, int]:
    """Return the sizes in bytes that a file of a process in /proc has by name; none if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    rows = [line.split() for line in lines if line.endswith(" kB")]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3}


def losses_of(text: str) -> dict[int, tuple[float, float]]:
    """Return loss and tokens of each update that lines of metrics tell, to the last bit."""
    rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return {row["step"]: (row["loss"], row["tokens"]) for row in rows if row["kind"] == "train"}


def losses_in(run: Path) -> dict[int, tuple[float, float]]:
    """Return the same of a run's folder; none before it has begun."""
    path = run / METRICS
    return losses_of(path.read_text(encoding="utf-8")) if path.exists() else {}
