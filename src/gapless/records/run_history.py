"""What `metrics.jsonl` tells of a training run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self


if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """The figures of a run, under the names that they have in its file.

    Attributes:
        losses: of every batch in order; None where one was not finite.
        epochs: figures of each epoch; `step` is its number.
        test: figures of the final model; None before it was scored.
    """

    losses: tuple[float | None, ...] = ()
    epochs: tuple[dict[str, Any], ...] = ()
    test: dict[str, Any] | None = None

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> Self:
        """Return what the lines of the file say; damaged lines are left out."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            try:
                row = json.loads(line)
                rows.setdefault(row["kind"], []).append(row)
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return cls(
            losses=tuple(row.get("loss") for row in rows.get("train", [])),
            epochs=tuple(rows.get("epoch", [])),
            test=rows["test"][-1] if "test" in rows else None,
        )
