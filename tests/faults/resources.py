"""What a process holds while it trains, and whether that grows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median


# Seconds between two looks, and those at the start that do not count: allocators settle.
PERIOD = 0.2
WARM_UP = 5.0

# Fewer looks than these, after the warm-up, say nothing.
FEWEST = 30

# What the median look of the last third of a process' life may hold more than that of the first. A save
# holds more for a while, and batches that come from workers hold twice as many descriptors for a moment.
MORE_SHARE = 0.05
MORE_BYTES = 8 << 20
MORE_THREADS = 4
MORE_DESCRIPTORS = 8


@dataclass(frozen=True)
class Held:
    """What a process holds at a moment: resident bytes, threads and open descriptors."""

    memory_bytes: int
    threads: int
    descriptors: int


def held_by(pid):
    """Return what a process holds; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return Held(
            memory_bytes=int(values["VmRSS"].split()[0]) << 10,
            threads=int(values["Threads"]),
            descriptors=len(list((folder / "fd").iterdir())),
        )
    except (OSError, KeyError):
        return None


def watch(process, seconds):
    """Yield what a process holds, again and again, until it ends or the time is over."""
    end = time.monotonic() + seconds
    while process.is_running and (left := end - time.monotonic()) > 0:
        if (held := held_by(process.pid)) is not None:
            yield held
        time.sleep(min(PERIOD, left))


class Thirds:
    """The first and the last third of what was seen of a process after its warm-up.

    Args:
        seen: what it held, in order, a period apart.
    """

    def __init__(self, seen):
        settled = seen[int(WARM_UP / PERIOD) :]
        self.is_judged = len(settled) >= FEWEST
        third = len(settled) // 3
        self._parts = settled[:third], settled[len(settled) - third :]

    def __str__(self):
        if not self.is_judged:
            return "too short"
        first, last = self._medians("memory_bytes")
        threads, descriptors = self._medians("threads")[1], self._medians("descriptors")[1]
        return (
            f"{first / 2**20:.1f} to {last / 2**20:.1f} MiB, "
            f"{threads:.0f} threads, {descriptors:.0f} descriptors"
        )

    def growth(self):
        """Return what has grown by more than it may: nothing, if all stays flat."""
        if not self.is_judged:
            return []
        found = []
        first, last = self._medians("memory_bytes")
        if last > first * (1 + MORE_SHARE) + MORE_BYTES:
            found.append(f"memory grew from {first / 2**20:.1f} to {last / 2**20:.1f} MiB")
        for name, more in (("threads", MORE_THREADS), ("descriptors", MORE_DESCRIPTORS)):
            first, last = self._medians(name)
            if last > first + more:
                found.append(f"{name} grew from {first:.0f} to {last:.0f}")
        return found

    def _medians(self, name):
        return [median(getattr(held, name) for held in part) for part in self._parts]
