"""Figures of a call: speeds, efficiency, and what is exposed, from what the rounds measured."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.ranks.rows import CAPTURED, SILENT


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.race import RowResult


def summarize(results: Sequence[RowResult], *, world: int) -> list[dict[str, Any]]:
    """Return the figures of every row of a call.

    Speeds are medians of the rounds. Efficiency and exposed time compare a row with another one of
    the same round, since a host is slow for all rows of a round; medians of these are taken.

    Args:
        results: of the race.
        world: ranks of the rows that have several.
    """
    found = [_speeds(result, world=world) for result in results]
    of_name = {one["name"]: one for one in found}
    for one, row in zip(found, (result.row for result in results), strict=True):
        alone, silent = of_name.get(row.alone), of_name.get(SILENT)
        if row.is_alone:
            continue
        if alone is not None:
            one["efficiency"] = _middle(
                [
                    _tokens_per_second(ours) / (world * _tokens_per_second(theirs))
                    for ours, theirs in zip(one["rounds"], alone["rounds"], strict=False)
                ]
            )
        # Only these have the batches of the row that sums nothing.
        if silent is not None and row.alone == CAPTURED and row.name != SILENT:
            one["exposed_ms"] = _middle(
                [
                    _ms_per_step(ours) - _ms_per_step(theirs)
                    for ours, theirs in zip(one["rounds"], silent["rounds"], strict=False)
                ]
            )
    return found


def _speeds(result: RowResult, *, world: int) -> dict[str, Any]:
    row = result.row
    found: dict[str, Any] = {
        "name": row.name,
        "title": row.title,
        "gpus": 1 if row.is_alone else world,
        "settings": row.settings,
        "problem": result.problem,
        "setup": result.setup,
        "rounds": result.rounds,
        "profile": result.profile,
    }
    found["tokens_per_second"] = _middle([_tokens_per_second(one) for one in result.rounds])
    found["ms_per_step"] = _middle([_ms_per_step(one) for one in result.rounds])
    for name in ("compute_ms_per_step", "collective_ms_per_step", "traced_exposed_ms_per_step"):
        found[name] = result.profile.get(name)
    as_written = sum(one.get("steps_as_written", 0) for one in result.rounds)
    if as_written:
        found["problem"] = f"{as_written} steps were not captured"
    found["peak_memory_bytes"] = max(
        (one["peak_memory_bytes"] for one in result.rounds), default=0
    )
    return found


def _tokens_per_second(one: dict[str, Any]) -> float:
    return float(one["target_tokens"] / one["seconds"])


def _ms_per_step(one: dict[str, Any]) -> float:
    return float(1000.0 * one["seconds"] / one["steps"])


def _middle(values: list[float]) -> dict[str, float] | None:
    """Return median, least and most; None of nothing."""
    if not values:
        return None
    return {"median": median(values), "min": min(values), "max": max(values)}
