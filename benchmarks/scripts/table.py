"""What was measured, as Markdown."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchmarks.scripts.bits import SAME, SAME_AS_EDITED
from benchmarks.scripts.variants import AS_WRITTEN, GPU_ONLY, VARIANTS


def newest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last entry of each script, in the order of their first."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        found[entry["script"]] = entry
    return list(found.values())


def speedup(entry: dict[str, Any], variant: str) -> float | None:
    """Return how many times as fast as written a variant is; None if it was not timed."""
    results = entry["variants"]
    parts = [results.get(which, {}).get("steps_per_s") for which in (AS_WRITTEN, variant)]
    return None if None in parts else parts[1] / parts[0]


def table(entries: list[dict[str, Any]]) -> str:
    """Return speeds of all scripts, and below them all that was measured of each."""
    chosen = newest(entries)
    return "\n".join([*_where(chosen), "", *_speeds(chosen), "", *_details(chosen)])


def _where(entries: list[dict[str, Any]]) -> list[str]:
    places = {
        f"{entry['hardware']}, {entry['versions']}, commit {entry['commit']}, {entry['date']}."
        for entry in entries
    }
    return sorted(places)


def _speeds(entries: list[dict[str, Any]]) -> list[str]:
    compared = [variant for variant in VARIANTS if variant != AS_WRITTEN]
    lines = [
        f"| script | as written, steps/s | device busy | {' | '.join(compared)} |",
        "|---|---|---|" + "---|" * len(compared),
    ]
    for entry in entries:
        written = entry["variants"].get(AS_WRITTEN, {})
        cells = [_cell(speedup(entry, variant), "{:.2f}") for variant in compared]
        cells.insert(0, _cell(written.get("busy"), "{:.0%}"))
        cells.insert(0, _cell(written.get("steps_per_s"), "{:.1f}"))
        lines.append(f"| {entry['script']} | {' | '.join(cells)} |")
    means = []
    for variant in compared:
        found = [value for entry in entries if (value := speedup(entry, variant))]
        means.append(f"{geometric_mean(found):.2f} ({len(found)})" if found else "")
    return [*lines, f"| geometric mean (scripts) | | | {' | '.join(means)} |"]


def _details(entries: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| script | variant | lines | bits | steps/s | middle half | waits a step | busy | GiB "
        "| first fast step, s | replayed |",
        "|---" * 11 + "|",
    ]
    notes = []
    for entry in entries:
        for variant, found in entry["variants"].items():
            lines.append(f"| {entry['script']} | {variant} | {' | '.join(_row(found, variant))} |")
            why = found.get("left_out") or found.get("problem")
            if why:
                notes.append(f"{entry['script']}, {variant}: {why}")
            elif _is_told(found, variant):
                notes.append(f"{entry['script']}, {variant}: {found['bits']}")
    return [*lines, "", *notes]


def _is_told(found: dict[str, Any], variant: str) -> bool:
    bits = found.get("bits") or SAME
    return variant not in GPU_ONLY and bits not in (SAME, SAME_AS_EDITED)


def _row(found: dict[str, Any], variant: str) -> list[str]:
    if "left_out" in found:
        return ["", "left out", *[""] * 7]
    lines, memory = found["lines"], found.get("memory") or {}
    low, high = found.get("middle_half") or (None, None)
    return [
        "" if variant == AS_WRITTEN else f"+{lines['added']} -{lines['removed']}",
        str(found.get("bits") or "failed").partition(":")[0],
        _cell(found.get("steps_per_s"), "{:.1f}"),
        "" if low is None else f"{low:.1f} to {high:.1f}",
        _cell(found.get("waits_per_step"), "{:.2f}"),
        _cell(found.get("busy"), "{:.0%}"),
        _cell(memory.get("reserved", 0) / 2**30 or None, "{:.2f}"),
        _cell(found.get("first_fast_s"), "{:.1f}"),
        _replayed(found.get("reports") or []),
    ]


def _replayed(reports: list[dict[str, Any]]) -> str:
    replays = sum(report["num_replays"] for report in reports)
    total = replays + sum(report["num_eager"] for report in reports)
    return f"{replays / total:.0%}" if total else ""


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
