"""Check what the origin of this project claimed about its plans against a measured comparison.

    gapless compare --json out.json
    python3 -m benchmarks.origin_claims out.json

The documents that this project was made from say what each plan would gain, before anything was
measured. `CLAIMS` lists every claim once: the numbers of the documents that make it, the plan, what
they say, the figure that decides, and the range in which it has to lie. Below the range a claim is
refuted, and above it as well, which the finding says. Where a document names one end alone, the
range has no other. Times also have to differ by more than the spread of the rounds.

This program needs the file alone: neither torch nor gapless.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


# The plan that the origin started from.
BEFORE = "blocking"

CONFIRMED = "confirmed"
REFUTED = "refuted"
NOT_MEASURABLE = "not measurable here"

_NO_DEVICE = "a CPU works in the host's own order: nothing to wait for, no device to keep busy"
_WITHIN_SPREAD = "within the spread of the rounds"

# Of a figure and of an end of a range, so that 1 - 95 / 100 is five percent.
_ROUNDING = 1e-9

# One object of `rows` in the file, and all of them by plan.
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Mapping[str, Row]

# What was found, in words; and the number that has to lie in the range of the claim, or whether the
# claim holds, or None if it cannot be told here.
Finding: TypeAlias = tuple[str, float | bool | None]

# Takes the row of the claim's plan, the row that it is compared with, and all rows.
Figure: TypeAlias = Callable[[Row, Row, Rows], Finding]


# --- figures ---


def waited(row: Row, before: Row, rows: Rows) -> Finding:
    """Milliseconds a step that the host is blocked."""
    found = row["waited_ms_per_step"]
    return f"{found:.2f} ms a step", found


def waited_less(row: Row, before: Row, rows: Rows) -> Finding:
    """The share of its former waiting that the host is spared."""
    ours, theirs = row["waited_ms_per_step"], before["waited_ms_per_step"]
    text = f"{theirs:.2f} -> {ours:.2f} ms a step"
    if not theirs:
        return text, None
    spared = 1.0 - ours / theirs
    return f"{text} ({-spared:+.0%})", spared


def tenth_of_waits(row: Row, before: Row, rows: Rows) -> Finding:
    """By how much the host waits that are left stay below ceil(N / 10) of an epoch's N."""
    return _tenth(row, row["waits_per_step"], before["waits_per_step"])


def tenth_of_reads(row: Row, before: Row, rows: Rows) -> Finding:
    """The same of the waits that read losses, those at the ends of epochs included."""
    return _tenth(row, _num_reads(row), _num_reads(before))


def _num_reads(row: Row) -> float:
    waits = row["waits_by_reason"]
    return sum(waits[reason]["count"] for reason in ("loss_read", "epoch_end") if reason in waits)


def _tenth(row: Row, ours: float, before: float) -> Finding:
    if not before:
        return f"{before:.2f} a step before, {ours:.2f} after", None
    # One more, because our epochs end with a wait of their own.
    allowed = (math.ceil(row["steps_per_epoch"] / 10.0) + 1.0) / row["steps_per_epoch"]
    text = f"{before:.2f} -> {ours:.2f} a step ({ours / before - 1.0:+.0%})"
    return text, allowed - ours / before


def cost_of_a_read(row: Row, before: Row, rows: Rows) -> Finding:
    """Milliseconds that one read of a loss blocks the host."""
    reads = row["waits_by_reason"].get("loss_read")
    if reads is None or not reads["count"]:
        return "no loss was read by itself", None
    found = reads["ms"] / reads["count"]
    return f"{found:.3f} ms a read", found


def time_saved(row: Row, before: Row, rows: Rows) -> Finding:
    """The share of its former time by which an epoch is shorter."""
    ours, theirs = row["ms_per_step"], before["ms_per_step"]
    saved = 1.0 - ours["median"] / theirs["median"]
    text = f"{theirs['median']:.2f} -> {ours['median']:.2f} ms a step ({-saved:+.1%})"
    if _overlap(ours, theirs):
        return f"{text}, {_WITHIN_SPREAD}", False
    return text, saved


def _overlap(ours: Row, theirs: Row) -> bool:
    """Whether the middle halves of the rounds have a value in common."""
    return bool(ours["q1"] <= theirs["q3"] and theirs["q1"] <= ours["q3"])


def utilisation(row: Row, before: Row, rows: Rows) -> Finding:
    """Percent by nvidia-smi, which the origin went by; without it, by a trace of kernels."""
    busy = None if row["busy_share"] is None else 100.0 * row["busy_share"]
    if row["nvml_percent"] is None:
        text = "no device utilisation here" if busy is None else f"busy {busy:.0f} %"
        return text, busy
    kernels = "" if busy is None else f", kernels {busy:.0f} %"
    return f"NVML {row['nvml_percent']:.0f} %{kernels}", row["nvml_percent"]


def utilisation_gained(row: Row, before: Row, rows: Rows) -> Finding:
    """Percentage points by which the device is in use for more of the time."""
    (ours, mine), (theirs, other) = utilisation(row, row, rows), utilisation(before, before, rows)
    if mine is None or other is None:
        return "no device utilisation here", None
    return f"{theirs} -> {ours} ({mine - other:+.0f} points)", mine - other


def host_cpu(row: Row, before: Row, rows: Rows) -> Finding:
    """Percent of a core that the host uses."""
    found = row["host_cpu_percent"]
    if found is None:
        return "rounds too short to tell processor time", None
    return f"{found:.0f} % of one core", found


def memory_times(row: Row, before: Row, rows: Rows) -> Finding:
    """How many times its former peak memory the plan takes."""
    ours, theirs = row["peak_memory_bytes"], before["peak_memory_bytes"]
    if not ours or not theirs:
        return "no memory of its own here", None
    return f"{ours / theirs:.2f} times the peak memory", ours / theirs


def overlap_gained(row: Row, before: Row, rows: Rows) -> Finding:
    """By how much more of its time a kernel runs beside another; forward and backward are kernels."""
    ours, theirs = row["overlap_share"], before["overlap_share"]
    if ours is None or theirs is None:
        return "no kernel trace here", None
    return f"{theirs:.1%} -> {ours:.1%} of kernel time runs beside other kernels", ours - theirs


def same_losses(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether training gives the same: bits here, where the origin looks at means."""
    if row["identical"] is None:
        return "bits not compared", None
    return ("bit-identical" if row["identical"] else "different"), row["identical"]


def pays_best(row: Row, before: Row, rows: Rows) -> Finding:
    """Whether the plan is faster than all other plans of the origin, by more than the spread."""
    others = {
        name: rows[name]["ms_per_step"]
        for name in _ORIGINS_PLANS
        if name in rows and name != row["plan"]
    }
    best = min(others, key=lambda name: float(others[name]["median"]), default=None)
    if best is None:
        return "no other of the origin's plans compared", None
    ours, theirs = row["ms_per_step"], others[best]
    text = (
        f"{ours['median']:.2f} ms a step; "
        f"the best of the others is {best} with {theirs['median']:.2f}"
    )
    near = [name for name, other in others.items() if _overlap(ours, other)]
    if near:
        text += f"; {_WITHIN_SPREAD}: {', '.join(near)}"
    return text, not near and ours["median"] < theirs["median"]


_ORIGINS_PLANS = ("deferred-loss", "events", "interval", "events-interval", "four-stream", "full")


# --- claims ---


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        sources: numbers of the documents that make it.
        plan: the plan that it is about.
        text: what they say.
        figure: what is measured.
        low: the least that confirms it.
        high: the most that confirms it.
        than: the plan that it is compared with.
    """

    sources: str
    plan: str
    text: str
    figure: Figure
    low: float = -math.inf
    high: float = math.inf
    than: str = BEFORE

    @property
    def needs_device(self) -> bool:
        """Whether it says nothing of a CPU; counts of waits and bits do."""
        return self.figure not in (same_losses, tenth_of_waits, tenth_of_reads)


_SAME = "the losses stay what they were"
_TENTH_OF_WAITS = "of N host waits ceil(N/10) are left (-90 %)"
_TENTH_OF_READS = "of N reads of the loss ceil(N/10) are left (-90 %)"
_MEMORY_STAYS = "memory does not change"
_TWO_TO_THREE = "memory becomes 2 to 3 times as much"
_TO_FIVE = "an epoch takes 3 to 5 % less time"
_TO_FIFTEEN = "an epoch takes 10 to 15 % less time"

# What a trace of kernels that never overlap may show all the same.
_LEAST_OVERLAP = 0.01

# fmt: off
CLAIMS: tuple[Claim, ...] = (
    Claim("000, 001, 002", BEFORE, "the host waits 20 to 30 ms a batch", waited, 20, 30),
    Claim("001, 002", BEFORE, "device utilisation is 70 to 80 %", utilisation, 70, 80),
    Claim("000, 001, 002", BEFORE, "host CPU utilisation is 60 to 70 %", host_cpu, 60, 70),
    Claim("004", BEFORE, "a read of the loss blocks the host 0.1 to 0.5 ms", cost_of_a_read, 0.1, 0.5),
    Claim("004", "deferred-loss", _SAME, same_losses),
    Claim("004", "deferred-loss", _TENTH_OF_READS, tenth_of_reads, 0),
    Claim("004", "deferred-loss", "device utilisation rises by 5 to 10 points", utilisation_gained, 5, 10),
    Claim("004", "deferred-loss", "an epoch takes 2 to 5 % less time", time_saved, 0.02, 0.05),
    Claim("004", "deferred-loss", _MEMORY_STAYS, memory_times, 0.95, 1.05),
    Claim("001, 002", "events", _TO_FIVE, time_saved, 0.03, 0.05),
    Claim("002", "events", _MEMORY_STAYS, memory_times, 0.95, 1.05),
    Claim("002", "interval", _TENTH_OF_WAITS, tenth_of_waits, 0),
    Claim("001, 002", "interval", _TO_FIVE, time_saved, 0.03, 0.05),
    Claim("000", "events-interval", _SAME, same_losses),
    Claim("000, 001, 002", "events-interval", _TENTH_OF_WAITS, tenth_of_waits, 0),
    Claim("000, 001, 002", "events-interval", "the host waits 90 % less (2 to 3 ms a batch)", waited_less, 0.9),
    Claim("000, 001, 002", "events-interval", "host CPU utilisation is 80 to 85 %", host_cpu, 80, 85),
    Claim("000, 001, 002", "events-interval", _TO_FIVE, time_saved, 0.03, 0.05),
    Claim("001, 002", "events-interval", "it pays best of the origin's plans", pays_best),
    Claim("003", "four-stream", _SAME, same_losses),
    Claim("002", "four-stream", "device utilisation is 90 to 95 %", utilisation, 90, 95),
    Claim("003", "four-stream", "device utilisation rises by 10 points over the stage before it",
          utilisation_gained, 10, than="events-interval"),
    Claim("001, 002", "four-stream", _TO_FIFTEEN, time_saved, 0.10, 0.15),
    Claim("003", "four-stream", "an epoch takes 6 to 10 % less time, both stages together", time_saved, 0.06, 0.10),
    Claim("002, 003", "four-stream", "an epoch takes 3 to 10 % less time than in the stage before it",
          time_saved, 0.03, 0.10, than="events-interval"),
    Claim("002", "four-stream", _TWO_TO_THREE, memory_times, 2, 3),
    Claim("003", "four-stream", "forward and backward overlap in part", overlap_gained, _LEAST_OVERLAP),
    Claim("001, 002", "full", _TO_FIFTEEN, time_saved, 0.10, 0.15),
    Claim("002", "full", _TWO_TO_THREE, memory_times, 2, 3),
)
# fmt: on


# --- verdicts ---


@dataclass(frozen=True)
class Result:
    """A claim, what was measured, and whether that confirms it."""

    claim: Claim
    measured: str
    verdict: str


def check_claims(comparison: Mapping[str, Any]) -> list[Result]:
    """Return every claim with its verdict.

    Args:
        comparison: the file of `gapless compare --json`.
    """
    rows = {row["plan"]: row for row in comparison["rows"]}
    is_accelerator = bool(comparison["is_accelerator"])
    return [_check(claim, rows, is_accelerator=is_accelerator) for claim in CLAIMS]


def _check(claim: Claim, rows: Rows, *, is_accelerator: bool) -> Result:
    absent = [name for name in (claim.plan, BEFORE) if name not in rows]
    if absent:
        found: Finding = f"{' and '.join(dict.fromkeys(absent))} not compared", None
    elif claim.needs_device and not is_accelerator:
        found = _NO_DEVICE, None
    elif claim.than not in rows:
        found = f"{claim.than} not compared", None
    else:
        found = claim.figure(rows[claim.plan], rows[claim.than], rows)
    return _judge(claim, *found)


def _judge(claim: Claim, text: str, value: float | bool | None) -> Result:
    if value is None:
        return Result(claim, text, NOT_MEASURABLE)
    if isinstance(value, bool):
        return Result(claim, text, CONFIRMED if value else REFUTED)
    if value > claim.high + _ROUNDING:
        return Result(claim, f"{text}, more than claimed", REFUTED)
    if value < claim.low - _ROUNDING:
        return Result(claim, f"{text}, less than claimed", REFUTED)
    return Result(claim, text, CONFIRMED)


def claims_text(results: Sequence[Result]) -> str:
    """Return the claims under their verdicts, each with its figures."""
    return "\n".join(_lines(results))


def _lines(results: Sequence[Result]) -> Iterator[str]:
    yield "The origin's claims, and what was measured (numbers are its documents)"
    for verdict in (CONFIRMED, REFUTED):
        found = [result for result in results if result.verdict == verdict]
        yield f"{verdict}: {len(found) or 'none'}"
        for result in found:
            yield f"  {result.claim.plan}: {result.claim.text} ({result.claim.sources})"
            yield f"    {result.measured}"
    rest = [result.measured for result in results if result.verdict == NOT_MEASURABLE]
    if rest:
        yield f"{NOT_MEASURABLE}: {len(rest)}"
        yield from (f"  {rest.count(reason)}: {reason}" for reason in dict.fromkeys(rest))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print which claims hold; return 0, or 2 if the file is no comparison."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.origin_claims", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("file", type=Path, help="written by gapless compare --json")
    file = parser.parse_args(arguments).file
    try:
        results = check_claims(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"{file} is no comparison that can be checked: {type(error).__name__}: {error}; "
            "write one with gapless compare --json",
            file=sys.stderr,
        )
        return 2
    print(claims_text(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
