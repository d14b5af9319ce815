"""What the runs of trainings with and without gapless say together: numbers, and a plot."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.changing_shapes.loops import AS_WRITTEN


if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


# What gapless may cost: a share of the time as written, and so much a process.
MOST = 1.1
ALLOWANCE_S = 5.0

Runs = list[dict[str, Any]]


_NUM_SHOWN = 10


def short(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with few of its marks, one hash, and without texts."""
    if "problem" in run:
        return run
    marks = list(run["marks"].items())
    apart = max(len(marks) // _NUM_SHOWN, 1)
    shown = dict(marks[::-1][::apart][::-1])
    hashes = list(run["hashes"].values())
    told = [{key: _rounded(one[key]) for key in one if key != "text"} for one in run["accounts"]]
    return {**run, "marks": shown, "hashes": hashes[-1:], "accounts": told}


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def cases_of(runs: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Runs]]:
    """Return the runs that trained by loop and lengths, and then by variant; marks are numbers."""
    found: dict[tuple[str, str], dict[str, Runs]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if "problem" in run:
            continue
        marks = {int(mark): seconds for mark, seconds in run["marks"].items()}
        hashes = {int(mark): text for mark, text in run["hashes"].items()}
        found[run["loop"], run["lengths"]][run["variant"]].append(
            {**run, "marks": marks, "hashes": hashes}
        )
    return found


def judged(written: Runs, captured: Runs, num_steps: int) -> dict[str, Any] | None:
    """Return how some runs with gapless compare with those without, up to a number of steps.

    A run that was cut short ends the comparison: only marks that all runs have are compared.

    Args:
        written: runs without, at least one.
        captured: runs with, at least one.
        num_steps: how far they are compared.
    """
    shared = set.intersection(*(set(run["marks"]) for run in written + captured))
    marks = sorted(mark for mark in shared if mark <= num_steps)
    if not marks:
        return None
    last = marks[-1]
    worst_s, at, spread_s = max(
        (
            max(run["marks"][mark] for run in captured)
            - MOST * median(run["marks"][mark] for run in written)
            - ALLOWANCE_S,
            mark,
            max(run["marks"][mark] for run in written)
            - min(run["marks"][mark] for run in written),
        )
        for mark in marks
    )
    behind = [mark for mark in marks if mark <= 0.75 * last]
    quarter = None
    if behind:
        quarter = _since(captured, behind[-1], last) / _since(written, behind[-1], last)
    bits = {run["hashes"][last] for run in written}
    others = {run["hashes"][last] for run in captured}
    return {
        "steps": last,
        "written_s": [run["marks"][last] for run in written],
        "captured_s": [run["marks"][last] for run in captured],
        "worst_s": worst_s,
        "worst_at": at,
        "spread_s": spread_s,
        "holds": worst_s <= spread_s,
        "ratio": _since(captured, 0, last) / _since(written, 0, last),
        "last_quarter": quarter,
        "bits": "same" if bits == others and len(bits) == 1 else _of_bits(bits, others),
    }


def _since(runs: Runs, begin: int, end: int) -> float:
    return median(run["marks"][end] - run["marks"].get(begin, 0.0) for run in runs)


def _of_bits(bits: set[str], others: set[str]) -> str:
    if len(bits) > 1:
        return "as written they differ"
    return "same in some" if bits & others else "OTHER BITS"


def lines_of(runs: Iterable[dict[str, Any]], steps: list[int]) -> list[str]:
    """Return a table, a line for each training with gapless and each number of steps."""
    lines = [
        f"{'':32}{'steps':>7}{'written s':>11}{'captured s':>12}{'ratio':>7}{'last 1/4':>10}"
        f"{'worst over':>12}{'at':>7}{'spread':>8}  bits"
    ]
    for (loop, lengths), variants in cases_of(runs).items():
        written = variants.get(AS_WRITTEN, [])
        for variant, captured in variants.items():
            if variant == AS_WRITTEN or not written:
                continue
            seen = set()
            for num_steps in steps:
                row = judged(written, captured, num_steps)
                if row is None or row["steps"] in seen:
                    continue
                seen.add(row["steps"])
                lines.append(_line(f"{loop}, {lengths}, {variant}", row))
            lines.append("    " + _account(written, captured))
    return lines


def _line(name: str, row: dict[str, Any]) -> str:
    quarter = "-" if row["last_quarter"] is None else f"{row['last_quarter']:.2f}"
    return (
        f"{name:32}{row['steps']:7,}{median(row['written_s']):11.2f}"
        f"{median(row['captured_s']):12.2f}{row['ratio']:7.2f}{quarter:>10}"
        f"{row['worst_s']:+10.2f} s{row['worst_at']:7,}{row['spread_s']:6.2f} s  {row['bits']}"
        f"{'' if row['holds'] else '  COSTS TOO MUCH'}"
    )


def _account(written: Runs, captured: Runs) -> str:
    """Return what gapless itself says of its runs, in the median, beside what was seen."""

    def of(key: str) -> float:
        return median(sum(one[key] for one in run["accounts"]) for run in captured)

    debt_s = median(run["account_s"] - run["account_as_written_s"] for run in captured)
    last = min(max(run["marks"]) for run in written + captured)
    seen_s = _since(captured, 0, last) - _since(written, 0, last)
    return (
        f"watching {of('watching_s'):.2f} s, capturing {of('capturing_s'):.2f} s, auditing "
        f"{of('auditing_s'):.2f} s, saved {of('saved_s'):.2f} s; by its account {debt_s:+.2f} s, seen "
        f"{seen_s:+.2f} s; {of('graphs'):.0f} graphs, {of('replays'):.0f} replays, "
        f"{of('as_written'):.0f} as written"
    )


# --- the plot ---

_WIDTH, _HEIGHT, _MARGIN = 360, 220, 40
_COLOURS = {AS_WRITTEN: "#666", "in-place": "#06c", "step": "#c30", "bound": "#bbb"}


def plot(runs: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the cumulative time at each mark as an SVG: a panel for each training, a line for each run.

    The light line is what gapless may take.
    """
    parts = []
    cases = cases_of(runs)
    for number, ((loop, lengths), variants) in enumerate(cases.items()):
        x, y = number % 3 * (_WIDTH + _MARGIN), number // 3 * (_HEIGHT + 2 * _MARGIN)
        parts.append(f'<g transform="translate({x + _MARGIN},{y + _MARGIN})">')
        parts += _panel(f"{loop}, {lengths}", variants)
        parts.append("</g>")
    rows = -(-len(cases) // 3)
    size = f'width="{3 * (_WIDTH + _MARGIN) + _MARGIN}" height="{rows * (_HEIGHT + 2 * _MARGIN)}"'
    text = "\n".join(parts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    )
    path.write_text(f"{head}\n{text}\n</svg>\n", encoding="utf-8")


def _panel(title: str, variants: dict[str, Runs]) -> list[str]:
    lines = [(name, run["marks"]) for name, runs in variants.items() for run in runs]
    if AS_WRITTEN in variants:
        shared = set.intersection(*(set(run["marks"]) for run in variants[AS_WRITTEN]))
        bound = {
            mark: MOST * median(run["marks"][mark] for run in variants[AS_WRITTEN]) + ALLOWANCE_S
            for mark in sorted(shared)
        }
        lines.append(("bound", bound))
    most_x = max(max(marks) for _, marks in lines)
    most_y = max(max(marks.values()) for _, marks in lines)
    parts = [
        f'<text x="0" y="-8">{title}: seconds (up to {most_y:.1f}) at each step (up to {most_x:,})</text>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for name, marks in lines:
        points = " ".join(
            f"{mark / most_x * _WIDTH:.1f},{_HEIGHT - seconds / most_y * _HEIGHT:.1f}"
            for mark, seconds in marks.items()
        )
        parts.append(
            f'<polyline fill="none" stroke="{_COLOURS[name]}" points="0,{_HEIGHT} {points}"/>'
        )
    for number, name in enumerate(dict.fromkeys(name for name, _ in lines)):
        parts.append(f'<text x="8" y="{16 + 14 * number}" fill="{_COLOURS[name]}">{name}</text>')
    return parts
