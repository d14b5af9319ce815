"""What `benchmarks.limits` found, as figures and as Markdown tables."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.facts import heading


def summarize(
    name: str, title: str, found: dict[str, Any], *, peak_tflops: float | None
) -> dict[str, Any]:
    """Return the figures of a row, over its rounds.

    Model FLOP/s are the operations of `benchmarks.peers.flops.model_flops` over wall time, and
    utilisation is their share of the device's peak.

    Args:
        name: of the row.
        title: of the row, for people.
        found: `setup`, `rounds`, `profile` and `problem`, as the row's process told them.
        peak_tflops: most that the device can, in 10^12 operations a second; None: not known.
    """
    row: dict[str, Any] = {"name": name, "title": title, **found}
    rounds = found["rounds"]
    if not rounds:
        return row
    row["ms_per_step"] = _spread([1000.0 * r["seconds"] / r["steps"] for r in rounds])
    for what in ("target_tokens", "source_tokens", "sentences"):
        row[f"{what}_per_second"] = _spread([r[what] / r["seconds"] for r in rounds])
    row["model_tflops"] = _spread([r["model_flops"] / r["seconds"] / 1e12 for r in rounds])
    row["utilisation"] = row["model_tflops"]["median"] / peak_tflops if peak_tflops else None
    row["target_tokens_per_step"] = median(r["target_tokens"] / r["steps"] for r in rounds)
    row["padding_share"] = median(r["padding_share"] for r in rounds)
    gaps = [r["gap_share"] for r in rounds if r["gap_share"] is not None]
    row["gap_share"] = median(gaps) if gaps else None
    row["host_waits"] = rounds[-1]["host_waits"]
    capture = rounds[-1]["capture"]
    if capture is not None and capture["refusal"]:
        row["problem"] = f"not captured: {capture['refusal']}"
    for kind in ("peak", "held"):
        row[f"{kind}_memory_bytes"] = max(r[f"{kind}_memory_bytes"] for r in rounds)
    if found["profile"]:
        # The profile is of other steps than the rounds, so by noise it may be a little above 1.
        row["busy_share"] = found["profile"]["busy_ms_per_step"] / row["ms_per_step"]["median"]
    return row


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


_HEADER = (
    "",
    "ms a step",
    "target tokens/s",
    "source tokens/s",
    "target tokens a step",
    "padding",
    "model TFLOP/s",
    "utilisation",
    "device busy",
    "memory held",
    "warm-up",
    "gap",
    "host waits",
)


def to_markdown(facts: dict[str, Any]) -> str:
    """Return a table a case, with what was run and where above them."""
    lines = [
        *heading("Limits", facts),
        f"{facts['measured']}. Steps: median, least and most of the rounds. Tokens: without "
        "padding. Model TFLOP/s: 6 operations for each weight and token that it is applied to, "
        "attention's products, no look-ups, no padding "
        f"(`benchmarks/peers/flops.py`). Utilisation: of {facts['peak_tflops']:,.0f} TFLOP/s. "
        "Device busy: time in which a kernel ran, in a profile, over the step. Memory held: by "
        "torch's allocator, graphs' pools included. Warm-up: seconds to compile and capture. Gap: "
        "share of device time between steps. Host waits: of a round's timed steps.",
        "",
    ]
    for case in facts["cases"]:
        lines += _case(case)
    return "\n".join(lines)


def _case(case: dict[str, Any]) -> list[str]:
    lines = [
        f"## {case['case']}",
        "",
        f"{case['model']}. {case['batches']}.",
        "",
        f"| {' | '.join(_HEADER)} |",
        "|" + "---|" * len(_HEADER),
        *(f"| {' | '.join(_cells(row))} |" for row in case["rows"]),
        "",
    ]
    for row in case["rows"]:
        lines += _kernels(row)
    return lines


def _cells(row: dict[str, Any]) -> list[str]:
    if not row["rounds"]:
        return [row["title"], row["problem"] or "did not run", *["-"] * (len(_HEADER) - 2)]
    ms, memory, gap = row["ms_per_step"], row["held_memory_bytes"], row["gap_share"]
    waits = ", ".join(f"{why} {wait['count']}" for why, wait in row["host_waits"].items())
    return [
        row["title"] + (f" ({row['problem']})" if row["problem"] else ""),
        f"{ms['median']:.2f} ({ms['min']:.2f} to {ms['max']:.2f})",
        f"{row['target_tokens_per_second']['median']:,.0f}",
        f"{row['source_tokens_per_second']['median']:,.0f}",
        f"{row['target_tokens_per_step']:,.0f}",
        f"{row['padding_share']:.1%}",
        f"{row['model_tflops']['median']:,.3g}",
        "-" if row["utilisation"] is None else f"{row['utilisation']:.1%}",
        f"{row['busy_share']:.0%}" if "busy_share" in row else "-",
        f"{memory / 2**30:.1f} GiB" if memory else "-",
        f"{row['setup']['warm_up_seconds']:.1f} s",
        "-" if gap is None else f"{gap:.1%}",
        waits or "0",
    ]


def _kernels(row: dict[str, Any]) -> list[str]:
    kernels = row["profile"].get("costliest_kernels")
    if not kernels:
        return []
    return [
        f"Costliest kernels, {row['title']}:",
        "",
        *(f"* {kernel['share']:.1%} `{kernel['kernel'][:100]}`" for kernel in kernels),
        "",
    ]
