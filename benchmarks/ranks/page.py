"""The page of a file of calls: `python -m benchmarks.ranks.page FILE.json` writes FILE.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import replace_text


if TYPE_CHECKING:
    from collections.abc import Sequence


# Exposed communication of a step, in milliseconds, that a captured row is to stay below.
GOALS_MS = {"base32": 0.9, "base8192": 0.7, "big25k": 2.4}


def write_page(path: Path, calls: Sequence[dict[str, Any]]) -> Path:
    """Write the page of some calls beside their file; return where."""
    page = path.with_suffix(".md")
    replace_text(page, to_markdown(calls))
    return page


def to_markdown(calls: Sequence[dict[str, Any]]) -> str:
    """Return the page: of each case and choice of rows the newest call.

    Args:
        calls: in the order of time.
    """
    newest = {(call["case"], *(row["name"] for row in call["rows"])): call for call in calls}
    lines = ["# One GPU and several", "", *_LEGEND, ""]
    for call in sorted(newest.values(), key=lambda call: call["case"]):
        lines += _section(call)
    return "\n".join(lines)


def _section(call: dict[str, Any]) -> list[str]:
    goal = GOALS_MS.get(call["case"])
    size = "tiny, " if call["is_tiny"] else ""
    lines = [
        f"## {call['case']}: {size}{call['model']}",
        "",
        f"{call['gpus']} x {call['hardware']}, {call['versions']}, commit {call['commit']}, "
        f"{call['date']}.",
        f"`{call['command']}`",
        "",
        f"{call['batches']}. {call['measured']}.",
    ]
    if call["environment"]:
        lines.append(f"Environment: `{' '.join(call['environment'])}`.")
    if call["shortened"]:
        lines.append(f"Stopped early: {call['shortened']}.")
    if goal is not None:
        lines.append(f"Goal for the exposed time of captured steps: {goal} ms.")
    head = ("", "GPUs", "target tokens/s", "ms a step", "efficiency", "exposed, ms")
    head += (
        "other kernels, ms",
        "NCCL, ms",
        "exposed in the trace, ms",
        "peak memory",
        "last loss",
    )
    return [
        *lines,
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(_cells(row, len(head)))} |" for row in call["rows"]),
        "",
        *_verdict(call["rows"], goal),
    ]


def _verdict(rows: Sequence[dict[str, Any]], goal: float | None) -> list[str]:
    """Return a line on the row with the least exposed time; nothing where none was measured."""
    measured = [row for row in rows if row.get("exposed_ms") and not row["problem"]]
    if goal is None or not measured:
        return []
    best = min(measured, key=lambda row: row["exposed_ms"]["median"])
    exposed = best["exposed_ms"]["median"]
    word = "reached" if exposed <= goal else "not reached"
    return [f"Least exposed: {best['title']}, {exposed:.2f} ms; the goal is {word}.", ""]


def _cells(row: dict[str, Any], count: int) -> list[str]:
    title = row["title"]
    if not row["rounds"]:
        return [title, row["problem"] or "did not run", *["-"] * (count - 2)]
    memory = row["peak_memory_bytes"]
    return [
        title + (f" ({row['problem']})" if row["problem"] else ""),
        str(row["gpus"]),
        f"{row['tokens_per_second']['median']:,.0f}",
        _spread(row["ms_per_step"], "{:.2f}"),
        _spread(row.get("efficiency"), "{:.1%}"),
        _spread(row.get("exposed_ms"), "{:.2f}"),
        _number(row["compute_ms_per_step"]),
        _number(row["collective_ms_per_step"]),
        _number(row["traced_exposed_ms_per_step"]),
        f"{memory / 2**30:.1f} GiB" if memory else "-",
        f"{row['rounds'][-1]['loss']:.3f}",
    ]


def _spread(found: dict[str, float] | None, form: str) -> str:
    if found is None:
        return "-"
    middle, least, most = (form.format(found[name]) for name in ("median", "min", "max"))
    return f"{middle} ({least} to {most})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


_LEGEND = (
    "Each GPU has batches of its own, of the same size however many there are. All rows of a call take turns;",
    "figures are medians of the rounds, with the least and the most. Efficiency: tokens a second over those of as",
    "many GPUs alone, of the same kind. Exposed: by how much a step is longer than that of the row which sums",
    "nothing and has the same batches, so copies and waits for the later rank are in it. From a profile of",
    "some steps apart from the rounds: the time in which other kernels than NCCL's ran, on the rank where it is",
    "longer; the time of NCCL's kernels, and the part of it in which no other kernel ran, where of each kernel",
    "the rank counts that waited least.",
)


def main() -> int:
    """Write the page again; return 0, or 2 for a wrong call."""
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.ranks.page FILE.json", file=sys.stderr)
        return 2
    path = Path(sys.argv[1])
    print(f"written: {write_page(path, json.loads(path.read_text(encoding='utf-8')))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
