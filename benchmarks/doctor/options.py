"""What every part of the benchmark is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """How it is measured.

    Attributes:
        device: name of the device.
        cases: the cases to measure; all of a part if it is empty.
        rounds: of each side.
        is_small: whether sizes are for a CPU, to see that it runs.
        folder: for what processes print.
        judged: what `doctor.judge` wrote.
        programs: the folder of repositories of others.
    """

    device: str
    cases: tuple[str, ...]
    rounds: int
    is_small: bool
    folder: Path
    judged: Path | None
    programs: Path | None = None

    def chosen(self, names: list[str]) -> list[str]:
        """Return those of a part's cases that are asked for: a word names all that begin with it."""
        if not self.cases:
            return names[:2] if self.is_small else names
        return [name for name in names if any(name.startswith(case) for case in self.cases)]
