"""What was measured, as Markdown."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchmarks.launch_bound.published_figures import FIGURES
from benchmarks.launch_bound.variants import (
    AS_WRITTEN,
    CHANGES,
    COMPILE_STEP,
    CUDA_GRAPH_MODULE,
    GPU_ONLY,
    IN_PLACE,
    REDUCE_OVERHEAD_STEP,
    SAME,
    VARIANTS,
    WHOLE_STEP,
    WHOLE_STEP_COMPILED,
    WHOLE_STEP_EQUAL,
)


Entry = dict[str, Any]

MINUTE_S = 60.0

# Those with the same edits as the whole step, and all that is not ours.
EQUAL_PEERS = (CUDA_GRAPH_MODULE, COMPILE_STEP, REDUCE_OVERHEAD_STEP)
PEERS = GPU_ONLY
# Ours that are one graph a step.
WHOLE_STEPS = (WHOLE_STEP, WHOLE_STEP_EQUAL, WHOLE_STEP_COMPILED)


def rows(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Return the calls of each script, newest first; with changing shapes it is a row of its own."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        name = entry["script"] + (", changing shapes" if entry.get("is_changing") else "")
        found.setdefault(name, []).insert(0, entry)
    return found


def speed(entry: Entry, variant: str) -> float | None:
    """Return the steps a second of a variant, None if it was not timed."""
    found: float | None = entry["variants"].get(variant, {}).get("steps_per_s")
    return found


def ratio(calls: list[Entry], over: str, under: str) -> float | None:
    """Return how many times as fast one variant is as another in the newest call that timed both."""
    for entry in calls:
        parts = speed(entry, over), speed(entry, under)
        if parts[0] is not None and parts[1] is not None:
            return parts[0] / parts[1]
    return None


def first_minute(calls: list[Entry], variant: str) -> float | None:
    """Return steps in the first minute over those of the script as written, in the newest call."""
    for entry in calls:
        both = [_minute(entry["variants"].get(which, {})) for which in (variant, AS_WRITTEN)]
        if both[0] is not None and both[1]:
            return both[0] / both[1]
    return None


def _minute(found: Entry) -> float | None:
    """Return the steps of the first epochs, and of the rest of a minute at the steady speed."""
    if "first" not in found:
        return None
    first, later = found["first"], found["steps_per_s"]
    if first["seconds"] >= MINUTE_S:
        return float(first["steps"] * MINUTE_S / first["seconds"])
    return float(first["steps"] + (MINUTE_S - first["seconds"]) * later)


def best_peer(calls: list[Entry], peers: tuple[str, ...]) -> tuple[float, str, str] | None:
    """Return how far our fastest whole step is ahead of the fastest of some peers, and which these are.

    Of the call that timed the most variants of both, the newest of those.
    """
    variants = (*WHOLE_STEPS, *peers)
    for entry in sorted(calls, key=lambda one: -sum(speed(one, v) is not None for v in variants)):
        ours, theirs = (_fastest(entry, variants) for variants in (WHOLE_STEPS, peers))
        if ours is not None and theirs is not None:
            return ours[0] / theirs[0], ours[1], theirs[1]
    return None


def _fastest(entry: Entry, variants: tuple[str, ...]) -> tuple[float, str] | None:
    return max(((s, v) for v in variants if (s := speed(entry, v)) is not None), default=None)


def table(entries: list[Entry]) -> str:
    """Return speeds of all scripts, bits and changes, edited lines, and what failed."""
    found = rows([entry for entry in entries if entry["variants"]])
    parts = [_where(entries), _speeds(found), _summary(found), _checks(found)]
    parts += [_lines(found), _figures(found), _problems(found)]
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip()


def page(entries: list[Entry]) -> list[str]:
    """Return what a page of results shows: ours, and the fastest of others in the same call.

    Without blanks between cells: pages are counted in words.
    """
    heads = ("script", "steps/s as written", "in place", "whole step", "compiled")
    heads += ("in the first minute",)
    heads += ("whole step over the best peer with equal edits", "over the best of all")
    lines = [f"|{'|'.join(heads)}|", "|---" * len(heads) + "|"]
    for name, calls in rows(entries).items():
        written = next((one for entry in calls if (one := speed(entry, AS_WRITTEN))), None)
        ours = (IN_PLACE, _shown_whole_step(calls), WHOLE_STEP_COMPILED)
        minutes = [_cell(first_minute(calls, variant)) for variant in ours]
        cells = [name, _cell(written, "{:.1f}")]
        cells += [_cell(ratio(calls, variant, AS_WRITTEN)) for variant in ours]
        cells.append(", ".join(filter(None, minutes)))
        for peers in (EQUAL_PEERS, PEERS):
            best = best_peer(calls, peers)
            cells.append("" if best is None else f"{best[0]:.2f}({best[2]})")
        lines.append(f"|{'|'.join(cells)}|")
    return [*_where(entries), "", *lines]


def _shown_whole_step(calls: list[Entry]) -> str:
    """Return the whole step with equal edits, or that with fewer where it was not timed."""
    is_timed = ratio(calls, WHOLE_STEP_EQUAL, AS_WRITTEN) is not None
    return WHOLE_STEP_EQUAL if is_timed else WHOLE_STEP


def readme_rows(entries: list[Entry]) -> list[str]:
    """Return the rows of README's table: what it is, on what, and the means."""
    fixed = {name: calls for name, calls in rows(entries).items() if "," not in name}
    hardware = next(iter(fixed.values()))[0]["hardware"].partition(",")[0].removeprefix("NVIDIA ")
    lines = []
    whole = {name: _shown_whole_step(calls) for name, calls in fixed.items()}
    ours = {
        "captured in place": dict.fromkeys(fixed, IN_PLACE),
        "whole step": whole,
        "whole step with `compile=True`": dict.fromkeys(fixed, WHOLE_STEP_COMPILED),
    }
    for title, variants in ours.items():
        later = [ratio(calls, variants[n], AS_WRITTEN) for n, calls in fixed.items()]
        first = [first_minute(calls, variants[n]) for n, calls in fixed.items()]
        if any(later):
            lines.append(
                f"| {sum(one is not None for one in later)} launch-bound scripts, {title}, over the "
                f"script as published: later, first minute | {hardware} | "
                f"{', '.join(filter(None, map(_mean, (later, first))))} |"
            )
    for peers, title in ((EQUAL_PEERS, "with the same edits"), (PEERS, "of any kind")):
        ahead = [best[0] for calls in fixed.values() if (best := best_peer(calls, peers))]
        if ahead:
            lines.append(
                f"| the whole step over the fastest of torch.compile, CUDA graphs by hand and "
                f"CudaGraphModule {title} | {hardware} | {geometric_mean(ahead):.2f}x, ahead in "
                f"{sum(one > 1.0 for one in ahead)} of {len(ahead)} |"
            )
    return lines


def _where(entries: list[Entry]) -> list[str]:
    """Return on what and when it was measured; the commands stand in the file."""
    commits: dict[str, set[str]] = {}
    for entry in entries:
        torch = entry["versions"].partition(",")[0]
        place = f"{entry['hardware']}, {torch}, {entry['date']}"
        commits.setdefault(place, set()).add(entry["commit"])
    return [
        f"{place}, {', '.join(sorted(found))}: `python -m benchmarks.launch_bound`."
        for place, found in sorted(commits.items())
    ]


def _speeds(found: dict[str, list[Entry]]) -> list[str]:
    compared = [
        variant
        for variant in VARIANTS
        if variant != AS_WRITTEN
        and any(ratio(calls, variant, AS_WRITTEN) for calls in found.values())
    ]
    shown = (IN_PLACE, *WHOLE_STEPS)
    minutes = [variant for variant in shown if variant in compared]
    heads = [*(f"first minute, {variant}" for variant in minutes), *compared]
    lines = [
        f"| script | as written, steps/s | {' | '.join(heads)} |",
        "|---" * (len(heads) + 2) + "|",
    ]
    columns: list[list[float | None]] = [[] for _ in heads]
    for name, calls in found.items():
        written = next((one for entry in calls if (one := speed(entry, AS_WRITTEN))), None)
        values = [first_minute(calls, variant) for variant in minutes]
        values += [ratio(calls, variant, AS_WRITTEN) for variant in compared]
        if "," not in name:
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        cells = [_cell(value) for value in values]
        lines.append(f"| {name} | {_cell(written, '{:.1f}')} | {' | '.join(cells)} |")
    means = [f"{_mean(column)} ({len([v for v in column if v])})" for column in columns]
    return [*lines, f"| geometric mean (scripts), fixed shapes | | {' | '.join(means)} |"]


def _summary(found: dict[str, list[Entry]]) -> list[str]:
    lines = ["| script | whole step over the best with equal edits | over the best of all peers |"]
    lines.append("|---|---|---|")
    for name, calls in found.items():
        best = [best_peer(calls, peers) for peers in (EQUAL_PEERS, PEERS)]
        if any(best):
            cells = [
                "" if one is None else f"{one[0]:.2f} ({one[1]} over {one[2]})" for one in best
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    fixed = [calls for name, calls in found.items() if "," not in name]
    means = []
    for peers in (EQUAL_PEERS, PEERS):
        ahead = [best[0] for calls in fixed if (best := best_peer(calls, peers))]
        wins = sum(one > 1.0 for one in ahead)
        means.append(f"{_mean(list(ahead))}, ahead in {wins} of {len(ahead)}")
    return [*lines, f"| geometric mean, fixed shapes | {' | '.join(means)} |"]


def _checks(found: dict[str, list[Entry]]) -> list[str]:
    """Return bits, and what becomes of a change of a weight, a rate, an attribute."""
    shown = [
        variant
        for variant in VARIANTS
        if any(_is_checked(entry, variant) for calls in found.values() for entry in calls)
    ]
    head = "bits without captures; a changed weight, rate, attribute"
    lines = [f"| {head} | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for name, calls in found.items():
        cells = []
        for variant in shown:
            one = next((e["variants"][variant] for e in calls if _is_checked(e, variant)), {})
            bits, *changes = (_word(one.get(key)) for key in ("bits", *CHANGES))
            cells.append(f"{bits}; {', '.join(changes)}" if any(changes) else bits)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _word(value: str | None) -> str:
    """Return what is found, without its reason."""
    return (value or "").partition(":")[0]


def _is_checked(entry: Entry, variant: str) -> bool:
    return "bits" in entry["variants"].get(variant, {})


def _lines(found: dict[str, list[Entry]]) -> list[str]:
    shown = [
        variant
        for variant in VARIANTS
        if variant != AS_WRITTEN
        and any(
            "lines" in e["variants"].get(variant, {}) for calls in found.values() for e in calls
        )
    ]
    lines = [f"| edited lines | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for name, calls in found.items():
        cells = []
        for variant in shown:
            one = next(
                (o for e in calls if (o := e["variants"].get(variant, {}).get("lines"))), None
            )
            cells.append("" if one is None else f"+{one['added']} -{one['removed']}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _figures(found: dict[str, list[Entry]]) -> list[str]:
    figures = [(name, *FIGURES[name]) for name in found if name in FIGURES]
    if not figures:
        return []
    lines = ["| script | published by others, of their own programs (in no mean) | where |"]
    return [*lines, "|---|---|---|", *(f"| {' | '.join(figure)} |" for figure in figures)]


def _problems(found: dict[str, list[Entry]]) -> list[str]:
    lines = []
    for name, calls in found.items():
        for variant in VARIANTS:
            known = [e["variants"][variant] for e in calls if variant in e["variants"]]
            if not known:
                continue
            one = known[0]
            reasons = [one.get("left_out"), one.get("problem")]
            reasons += [f"checks: {why}"] if (why := one.get("unchecked")) else []
            bits = one.get("bits", SAME)
            may_differ = variant in (*GPU_ONLY, WHOLE_STEP_COMPILED)
            reasons += [] if may_differ or bits.startswith(SAME) else [bits]
            reasons += [f"{c}: {one[c]}" for c in CHANGES if ":" in str(one.get(c))]
            lines += [f"* {name}, {variant}: {reason}" for reason in reasons if reason]
    return lines


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value]
    return f"{geometric_mean(known):.2f}x" if known else ""


def _cell(value: float | None, form: str = "{:.2f}") -> str:
    return "" if value is None else form.format(value)
