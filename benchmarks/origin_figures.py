"""What decides a claim of the origin: one figure of a measured comparison, and why it is as it is.

A figure takes the row of the claim's plan, the row that it is compared with, and all rows by plan.
It returns what was found in numbers that need no language, a value that has to lie in the claim's
range, and a reason, whose words are in `benchmarks.origin_words`. Needs neither torch nor gapless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


# One object of `rows` in a file of `gapless compare --json`, and all of them by plan.
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Mapping[str, Row]

ORIGINS_PLANS = (
    *("deferred-loss", "events", "interval"),
    *("events-interval", "four-stream", "full"),
)

# What a trace of kernels that never overlap may show all the same.
LEAST_OVERLAP = 0.01

# The forward pass alone takes more than this of the kernel time, the optimizer less.
_LEAST_STREAM_SHARE = 0.2

# Of one core: a thread that uses this much of it does not sleep while it waits.
_SPINNING_PERCENT = 90.0

# A plan that keeps less than this over its timed rounds loses nothing batch by batch.
_MOST_GROWTH_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found of a claim.

    Attributes:
        text: the figures.
        value: the number that has to lie in the range of the claim, or whether the claim holds; None
            if it cannot be told.
        reason: name of the sentence that says why.
    """

    text: str
    value: float | bool | None
    reason: str


Figure: TypeAlias = Callable[[Row, Row, Rows], Finding]


def unknown(reason: str, text: str = "") -> Finding:
    """Return that nothing can be told, and why."""
    return Finding(text=text, value=None, reason=reason)


# --- host waits ---


def waits_of_batches(row: Row, before: Row, rows: Rows) -> Finding:
    """How often a batch the host waits for the batch itself."""
    return _count(row, "batch")


def reads_of_losses(row: Row, before: Row, rows: Rows) -> Finding:
    """How often a batch the host reads a loss."""
    return _count(row, "loss_read")


def _count(row: Row, reason: str) -> Finding:
    found = row["waits_by_reason"].get(reason, {"count": 0.0})["count"]
    return Finding(text=f"{found:.2f} /batch", value=round(found, 6), reason="counted")


def waited(row: Row, before: Row, rows: Rows) -> Finding:
    """Milliseconds a batch that the host is blocked."""
    found = row["waited_ms_per_step"]
    return Finding(text=f"{found:.2f} ms/batch", value=found, reason=_why_waited(row))


def waited_less(row: Row, before: Row, rows: Rows) -> Finding:
    """The share of its former waiting that the host is spared."""
    ours, theirs = row["waited_ms_per_step"], before["waited_ms_per_step"]
    text = f"{theirs:.2f} -> {ours:.2f} ms/batch"
    if not theirs:
        return unknown("no_waits_before", text)
    spared = 1.0 - ours / theirs
    text = f"{text} ({-spared:+.0%})"
    if _bound(before) != "device" or not row["waits_per_step"]:
        return Finding(text=text, value=spared, reason=_why_waited(before))
    return Finding(text=text, value=spared, reason="waits_longer")


def tenth_of_waits(row: Row, before: Row, rows: Rows) -> Finding:
    """By how much the waits that are left stay below ceil(N / 10) of an epoch's N.

    Waits that read losses are another count of the documents.
    """
    return _tenth(row, _num_syncs(row), _num_syncs(before))


def tenth_of_reads(row: Row, before: Row, rows: Rows) -> Finding:
    """The same of the waits that read losses, those at the ends of epochs included."""
    return _tenth(row, _num_reads(row), _num_reads(before))


def _num_syncs(row: Row) -> float:
    waits = row["waits_by_reason"]
    return sum(wait["count"] for reason, wait in waits.items() if reason != "loss_read")


def _num_reads(row: Row) -> float:
    waits = row["waits_by_reason"]
    return sum(waits[reason]["count"] for reason in ("loss_read", "epoch_end") if reason in waits)


def _tenth(row: Row, ours: float, before: float) -> Finding:
    text = f"{before:.2f} -> {ours:.2f} /batch"
    if not before:
        return unknown("no_waits_before", text)
    # One more, because our epochs end with a wait of their own.
    allowed = (math.ceil(row["steps_per_epoch"] / 10.0) + 1.0) / row["steps_per_epoch"]
    return Finding(
        text=f"{text} ({ours / before - 1.0:+.0%})",
        value=allowed - ours / before,
        reason="counted",
    )


def cost_of_a_read(row: Row, before: Row, rows: Rows) -> Finding:
    """Milliseconds that one read of losses blocks the host."""
    reads = row["waits_by_reason"].get("loss_read")
    if reads is None or not reads["count"]:
        return unknown("no_reads")
    found = reads["ms"] / reads["count"]
    return Finding(text=f"{found:.3f} ms", value=found, reason="read_after_wait")


def cost_of_reads(row: Row, before: Row, rows: Rows) -> Finding:
    """Milliseconds that the reads of the losses of 1,000 batches block the host."""
    reads = row["waits_by_reason"].get("loss_read")
    if reads is None:
        return unknown("no_reads")
    found = 1000.0 * reads["ms"]
    return Finding(text=f"{found:.1f} ms/1000 batch", value=found, reason="read_after_wait")


def reads_cost_less(row: Row, before: Row, rows: Rows) -> Finding:
    """The share of the time of reading losses that the host is spared."""
    ours, theirs = (cost_of_reads(one, one, rows).value for one in (row, before))
    if not ours or not theirs:
        return unknown("no_reads")
    spared = 1.0 - ours / theirs
    text = f"{theirs:.1f} -> {ours:.1f} ms/1000 batch ({-spared:+.0%})"
    return Finding(text=text, value=spared, reason="read_after_wait")


def _why_waited(row: Row) -> str:
    """Return whether launches or kernels bound the step, as the reason for how long it waits."""
    bound = _bound(row)
    return f"waits_{bound}" if bound else "timed"


def _bound(row: Row) -> str | None:
    """Return what bounds a step, its launches or its kernels; None if there is no trace."""
    busy = row["busy_ms_per_step"]
    if busy is None:
        return None
    return "launch" if row["launch_ms_per_step"] >= busy else "device"


# --- time ---


def time_saved(row: Row, before: Row, rows: Rows) -> Finding:
    """The share of its former time by which an epoch is shorter; False within the noise."""
    saved, text, is_noise = _saved(row, before)
    return Finding(text=text, value=False if is_noise else saved, reason=_why_saved(row, before))


def little_saved(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether an epoch is shorter by less than 3 %, the least that the plan claims elsewhere."""
    saved, text, is_noise = _saved(row, before)
    return Finding(text=text, value=is_noise or saved < 0.03, reason=_why_saved(row, before))


def seconds_saved(row: Row, before: Row, rows: Rows) -> Finding:
    """Seconds by which 1,000 batches are faster: milliseconds a batch; False within the noise."""
    _, text, is_noise = _saved(row, before)
    saved = before["ms_per_step"]["median"] - row["ms_per_step"]["median"]
    return Finding(
        text=f"{saved:.1f} s/1000 batch; {text}",
        value=False if is_noise else saved,
        reason=_why_saved(row, before),
    )


def _why_saved(row: Row, before: Row) -> str:
    """Return what bounds the time that can be saved, or what a slower plan spends."""
    saved, _, is_noise = _saved(row, before)
    ours, theirs = row["launch_ms_per_step"], before["launch_ms_per_step"]
    if saved < 0.0 and not is_noise and ours > theirs:
        return "time_slower"
    bound = _bound(before)
    return f"time_{bound}" if bound else "timed"


def _saved(row: Row, before: Row) -> tuple[float, str, bool]:
    ours, theirs = row["ms_per_step"], before["ms_per_step"]
    saved = 1.0 - ours["median"] / theirs["median"]
    text = f"{theirs['median']:.2f} -> {ours['median']:.2f} ms/batch ({-saved:+.1%})"
    is_noise = _overlap(ours, theirs)
    return saved, f"{text}, within the spread of the rounds" if is_noise else text, is_noise


def _overlap(ours: Row, theirs: Row) -> bool:
    """Whether the middle halves of the rounds have a value in common."""
    return bool(ours["q1"] <= theirs["q3"] and theirs["q1"] <= ours["q3"])


def epoch_seconds(row: Row, before: Row, rows: Rows) -> Finding:
    """Seconds of 1,000 batches: milliseconds a batch."""
    found = row["ms_per_step"]["median"]
    return Finding(text=f"{found:.1f} s/1000 batch", value=found, reason="other_device")


def pays_best(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether the plan is faster than all other plans of the origin, by more than the noise."""
    others = {
        name: rows[name]["ms_per_step"]
        for name in ORIGINS_PLANS
        if name in rows and name != row["plan"]
    }
    best = min(others, key=lambda name: float(others[name]["median"]), default=None)
    if best is None:
        return unknown("no_others")
    ours, theirs = row["ms_per_step"], others[best]
    text = f"{ours['median']:.2f} ms/batch; {best} {theirs['median']:.2f}"
    near = [name for name, other in others.items() if _overlap(ours, other)]
    if near:
        text += f"; within the spread of the rounds: {', '.join(near)}"
    return Finding(
        text=text, value=not near and ours["median"] < theirs["median"], reason="only_time"
    )


# --- utilisation ---


def utilisation(row: Row, before: Row, rows: Rows) -> Finding:
    """Percent by nvidia-smi, which the origin went by; without it, by a trace of kernels."""
    busy = None if row["busy_share"] is None else 100.0 * row["busy_share"]
    nvml = row["nvml_percent"]
    if nvml is None and busy is None:
        return unknown("no_utilisation")
    kernels = "" if busy is None else f"kernels {busy:.0f} %"
    text = kernels if nvml is None else f"NVML {nvml:.0f} %" + (f", {kernels}" if kernels else "")
    bound = _bound(row)
    return Finding(
        text=text,
        value=busy if nvml is None else nvml,
        reason=f"busy_{bound}" if bound else "timed",
    )


def utilisation_gained(row: Row, before: Row, rows: Rows) -> Finding:
    """Percentage points by which the device is in use for more of the time."""
    ours, theirs = utilisation(row, row, rows), utilisation(before, before, rows)
    if ours.value is None or theirs.value is None:
        return unknown("no_utilisation")
    gained = ours.value - theirs.value
    text = f"{theirs.text} -> {ours.text} ({gained:+.0f})"
    return Finding(text=text, value=gained, reason=theirs.reason)


def idle_removed(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether at least half of the time without a kernel goes when its supposed cause goes."""
    ours, theirs = _idle_ms(row), _idle_ms(before)
    if ours is None or theirs is None:
        return unknown("no_utilisation")
    is_gone = ours <= 0.5 * theirs
    return Finding(
        text=f"{theirs:.2f} -> {ours:.2f} ms/batch",
        value=is_gone,
        reason="idle_gone" if is_gone else "idle_stays",
    )


def _idle_ms(row: Row) -> float | None:
    if row["busy_ms_per_step"] is None:
        return None
    return max(0.0, float(row["ms_per_step"]["median"] - row["busy_ms_per_step"]))


def host_cpu(row: Row, before: Row, rows: Rows) -> Finding:
    """Percent of a core that the training process uses."""
    own = _own_cpu(row)
    if own is None:
        return unknown("short_rounds")
    return Finding(text=_cpu_text(row, own), value=own, reason=_why_cpu(own))


def host_cpu_gained(row: Row, before: Row, rows: Rows) -> Finding:
    """Points of a core that the training process uses more."""
    ours, theirs = _own_cpu(row), _own_cpu(before)
    if ours is None or theirs is None:
        return unknown("short_rounds")
    gained = ours - theirs
    text = f"{theirs:.0f} -> {ours:.0f} % of one core ({gained:+.0f})"
    return Finding(text=text, value=gained, reason=_why_cpu(theirs))


def _why_cpu(percent: float) -> str:
    return "spins" if percent >= _SPINNING_PERCENT else "sleeps"


def _own_cpu(row: Row) -> float | None:
    own = row.get("own_cpu_percent")
    return row["host_cpu_percent"] if own is None else own


def _cpu_text(row: Row, own: float) -> str:
    cores = row.get("cores")
    of_all = "" if not cores else f", {own / cores:.0f} % of {cores} cores"
    return f"{own:.0f} % of one core{of_all}"


# --- memory, streams, results ---


def memory_times(row: Row, before: Row, rows: Rows) -> Finding:
    """How many times its former peak memory the plan takes."""
    ours, theirs = row["peak_memory_bytes"], before["peak_memory_bytes"]
    if not ours or not theirs:
        return unknown("no_memory")
    text = f"{theirs / 2**20:,.0f} -> {ours / 2**20:,.0f} MiB ({ours / theirs:.2f}x)"
    return Finding(text=text, value=ours / theirs, reason="held_once")


def memory_grown(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether tensors hold no more memory after the timed rounds than before them."""
    grown = row.get("grown_memory_bytes")
    if grown is None:
        return unknown("no_memory")
    text = f"{grown / 2**20:+,.2f} MiB"
    return Finding(text=text, value=grown < _MOST_GROWTH_BYTES, reason="rounds_alike")


def overlap_gained(row: Row, before: Row, rows: Rows) -> Finding:
    """By how much more of its time a kernel runs beside another; forward and backward are kernels."""
    ours, theirs = row["overlap_share"], before["overlap_share"]
    if ours is None or theirs is None:
        return unknown("no_utilisation")
    return Finding(
        text=f"{theirs:.1%} -> {ours:.1%}", value=ours - theirs, reason="autograd_streams"
    )


def streams_used(row: Row, before: Row, rows: Rows) -> Finding:
    """How many streams run the kernels of a forward or a backward pass."""
    shares = row.get("stream_shares")
    if not shares:
        return unknown("no_utilisation")
    used = [share for share in shares if share >= _LEAST_STREAM_SHARE]
    text = " + ".join(f"{share:.0%}" for share in shares[:4])
    return Finding(text=text, value=float(len(used)), reason="autograd_streams")


def same_losses(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether training gives the same: bits here, where the origin looks at means."""
    if row["identical"] is None:
        return unknown("not_compared")
    text = "bit-identical" if row["identical"] else "different bits"
    return Finding(text=text, value=bool(row["identical"]), reason="compared")


# --- what no run tells ---


def effort(row: Row, before: Row, rows: Rows) -> Finding:
    """Days, lines, difficulty, stars and scores made of them."""
    return unknown("effort")


def usage(row: Row, before: Row, rows: Rows) -> Finding:
    """What others recommend or do."""
    return unknown("usage")


def tuning(row: Row, before: Row, rows: Rows) -> Finding:
    """What interval suits which batch: a measurement of its own, see `advised_intervals`."""
    return unknown("tuning")


def advised_intervals(tuned: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether the intervals that the origin advises are faster than all others by more than the spread.

    Args:
        tuned: by sentences a batch, the times of some intervals between reads of losses.
    """
    pairs = [(row["intervals"], _advised(row["sentences"])) for row in tuned]
    if not any(advised for _, advised in pairs):
        return unknown("tuning")
    holds = all(_is_faster(items, advised) for items, advised in pairs if advised)
    return Finding(text="", value=holds, reason="tuning")


def _advised(sentences: int) -> range | None:
    """Return the intervals that are advised for batches of so many sentences, None if any will do."""
    if sentences < _SMALL_BATCH:
        return range(20, 31)
    return range(5, 11) if sentences > _LARGE_BATCH else None


# Sentences, by 004, section 7.1.
_SMALL_BATCH, _LARGE_BATCH = 20, 50


def _is_faster(items: Sequence[Mapping[str, Any]], advised: range) -> bool:
    slowest = max(item["q3"] for item in items if item["interval"] in advised)
    return all(item["q1"] > slowest for item in items if item["interval"] not in advised)


# Counts, bits, and what is told of no run at all; the rest says nothing of a CPU.
TOLD_OF_A_CPU = frozenset(
    {
        *(same_losses, tenth_of_waits, tenth_of_reads, waits_of_batches, reads_of_losses),
        *(effort, usage, tuning),
    }
)
