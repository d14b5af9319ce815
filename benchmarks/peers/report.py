"""Results as JSON, as a Markdown table and as a plot."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.facts import heading


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.race import RowResult


# The row that the others are compared with.
REFERENCE = "captured"


def summarize(result: RowResult) -> dict[str, Any]:
    """Return a row's figures: every round, and median, least and most of its speeds."""
    row: dict[str, Any] = {
        "name": result.row.name,
        "title": result.row.title,
        "own_layout": False,
        "problem": result.problem,
        **result.setup,
        "rounds": result.rounds,
        "profile": result.profile,
    }
    if not result.rounds:
        return row
    for name, unit in (("steps", "steps"), ("target_tokens", "target_tokens")):
        row[f"{unit}_per_second"] = _spread([r[name] / r["seconds"] for r in result.rounds])
    step_ms = 1000.0 / row["steps_per_second"]["median"]
    row["ms_per_step"] = step_ms
    for kind in ("peak", "held"):
        row[f"{kind}_memory_bytes"] = max(r[f"{kind}_memory_bytes"] for r in result.rounds)
    if result.profile.get("kernels_per_step"):
        row["kernels_per_step"] = result.profile["kernels_per_step"]
        # Kernels last as long with a profiler as without; the host does not. So the share is that
        # of a step of the timed rounds, and by noise may be a little above 1.
        row["busy_share"] = result.profile["busy_ms_per_step"] / step_ms
    for fact in ("host_waits", "gap_share", "capture", "diagnosis"):
        row[fact] = result.rounds[-1].get(fact)
    return row


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Add how many times faster the reference is than each row, round by round, the median."""
    reference = next((row for row in rows if row["name"] == REFERENCE and row["rounds"]), None)
    if reference is None:
        return
    for row in rows:
        for name in ("steps", "target_tokens"):
            ratios = [
                (ours[name] / ours["seconds"]) / (theirs[name] / theirs["seconds"])
                for ours, theirs in zip(reference["rounds"], row["rounds"], strict=False)
            ]
            if ratios:
                row[f"{REFERENCE}_ratio_{name}"] = median(ratios)


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


_HEADER = (
    "row",
    "steps/s (least to most)",
    "target tokens/s",
    f"{REFERENCE} is faster: steps, tokens",
    "device busy",
    "kernels a step",
    "memory held",
    "host waits",
    "gap",
    "last loss",
)


def to_markdown(facts: dict[str, Any]) -> str:
    """Return the table, with what was run and where above it."""
    rows = facts["rows"]
    lines = [
        *heading(f"{facts['case']}: {facts['model']}", facts),
        f"{facts['batches']}. {facts['measured']}.",
        *_shortened(facts),
        "",
        f"| {' | '.join(_HEADER)} |",
        "|" + "---|" * len(_HEADER),
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
        "",
        "\\* Own padding or packing: its steps hold other pairs than those of the other rows, so "
        "compare tokens. Tokens are target tokens to predict, padding excluded. Device busy: time "
        "in which a kernel ran, in a profile, over the step time of the rounds. Memory held: by "
        "torch's allocator, graphs' pools and what it keeps for later included. Host waits and "
        "gap: as gapless counts them in the last round's timed steps, the wait at their end "
        "included; other rows do not count theirs.",
        "",
    ]
    return "\n".join(lines)


def _shortened(facts: dict[str, Any]) -> list[str]:
    left = facts.get("shortened")
    return ["", f"Stopped early: {left}."] if left else []


def _cells(row: dict[str, Any]) -> list[str]:
    title = row["title"] + (" \\*" if row["own_layout"] else "")
    if not row["rounds"]:
        return [title, row["problem"] or "did not run", *["-"] * (len(_HEADER) - 2)]
    steps = row["steps_per_second"]
    waits, gap = row["host_waits"], row["gap_share"]
    memory = row["held_memory_bytes"]
    return [
        title + (f" ({row['problem']})" if row["problem"] else ""),
        f"{steps['median']:.1f} ({steps['min']:.1f} to {steps['max']:.1f})",
        f"{row['target_tokens_per_second']['median']:,.0f}",
        _ratios(row),
        f"{row['busy_share']:.0%}" if "busy_share" in row else "-",
        f"{row['kernels_per_step']:,.0f}" if "kernels_per_step" in row else "-",
        f"{memory / 2**30:.1f} GiB" if memory else "-",
        "-" if waits is None else _waits(waits),
        "-" if gap is None else f"{gap:.1%}",
        f"{row['rounds'][-1]['loss']:.3f}",
    ]


def _ratios(row: dict[str, Any]) -> str:
    names = [f"{REFERENCE}_ratio_{name}" for name in ("steps", "target_tokens")]
    return ", ".join(f"{row[name]:.2f}x" for name in names if name in row) or "-"


def _waits(waits: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{reason} {wait['count']:.0f}" for reason, wait in waits.items()) or "0"


_ROW_HEIGHT, _LEFT, _WIDTH = 26, 330, 420


def to_svg(facts: dict[str, Any]) -> str:
    """Return bars of target tokens a second: medians, with lines from least to most."""
    rows = [row for row in facts["rows"] if row["rounds"]]
    most = max((row["target_tokens_per_second"]["max"] for row in rows), default=1.0)
    height = _ROW_HEIGHT * len(rows) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 110}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="13">{escape(facts["case"])}: target tokens a second, '
        f"{escape(facts['hardware'])}</text>",
        *(_bar(row, number, _WIDTH / most) for number, row in enumerate(rows)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(row: dict[str, Any], number: int, scale: float) -> str:
    speed = row["target_tokens_per_second"]
    top = 34 + number * _ROW_HEIGHT
    middle = top + 9
    ends = [_LEFT + speed[end] * scale for end in ("min", "max")]
    color = "#2a7f62" if row["title"].startswith("gapless") else "#8a94a6"
    title = row["title"] + (" *" if row["own_layout"] else "")
    return (
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(title)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{speed["median"] * scale:.1f}" height="18" '
        f'fill="{color}"/>'
        f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{middle}" y2="{middle}" '
        'stroke="black"/>'
        f'<text x="{ends[1] + 6:.1f}" y="{middle + 4}">{speed["median"]:,.0f}</text>'
    )
