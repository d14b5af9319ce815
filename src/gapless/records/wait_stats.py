"""How often the host waited for the device, for how long, and why."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WaitTotal:
    """Count and total time of the host waits of one reason.

    Attributes:
        count: number of waits.
        ms: time the host spent in them, in milliseconds.
    """

    count: int = 0
    ms: float = 0.0


@dataclass
class WaitStats:
    """The host's waits for the device, counted and timed by reason.

    Attributes:
        by_reason: total of every reason that occurred, in order of first occurrence.
    """

    by_reason: dict[str, WaitTotal] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of waits of all reasons."""
        return sum(total.count for total in self.by_reason.values())

    @property
    def ms(self) -> float:
        """Time of all waits, in milliseconds."""
        return sum(total.ms for total in self.by_reason.values())

    def add(self, reason: str, *, ms: float, count: int = 1) -> None:
        """Count waits of one reason.

        Sync: Does not block the host.
        """
        total = self.by_reason.setdefault(reason, WaitTotal())
        total.count += count
        total.ms += ms

    def merge(self, other: WaitStats) -> None:
        """Add the counts of `other` to these."""
        for reason, total in other.by_reason.items():
            self.add(reason, ms=total.ms, count=total.count)

    @classmethod
    def of_dict(cls, values: dict[str, dict[str, float]]) -> WaitStats:
        """Return what `as_dict` described."""
        waits = cls()
        for reason, total in values.items():
            waits.add(reason, ms=total["ms"], count=int(total["count"]))
        return waits

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return `{reason: {"count": ..., "ms": ...}}` for reports."""
        return {
            reason: {"count": total.count, "ms": round(total.ms, 3)}
            for reason, total in self.by_reason.items()
        }
