"""The origin's claims about its plans, checked against what was measured.

The documents that this project was made from say what each plan would gain, before anything was
measured. Every claim is here once, with the numbers of the documents that make it. One rule judges
them all: a claim is confirmed if the measured figure lies in the range that it names. Less refutes
it, and more does as well, which the finding says. Where a document names one end, the range has no
other. Times have to differ by more than the spread of the rounds besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.compare import claim_checks as checks
from gapless.records.comparison import (
    CONFIRMED,
    NOT_MEASURABLE,
    REFUTED,
    ClaimResult,
    Verdict,
)


_NO_DEVICE = "a CPU works in the host's own order: nothing to wait for, no device to keep busy"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim.

    Attributes:
        sources: numbers of the documents that make it.
        plan: the plan that it is about.
        text: what they say.
        check: compares it with the rows.
        needs_device: whether it says anything of a CPU; counts of waits do.
    """

    sources: tuple[str, ...]
    plan: str
    text: str
    check: checks.Check
    needs_device: bool = True


def check_claims(rows: checks.Rows, *, is_accelerator: bool) -> tuple[ClaimResult, ...]:
    """Return every claim of the origin with its verdict.

    Args:
        rows: of the plans that were compared, by name.
        is_accelerator: whether they ran beside the host.
    """
    return tuple(_checked(claim, rows, is_accelerator=is_accelerator) for claim in CLAIMS)


def _checked(claim: Claim, rows: checks.Rows, *, is_accelerator: bool) -> ClaimResult:
    measured, holds = _finding(claim, rows, is_accelerator=is_accelerator)
    verdict: Verdict = NOT_MEASURABLE
    if holds is not None:
        verdict = CONFIRMED if holds else REFUTED
    return ClaimResult(
        sources=claim.sources,
        plan=claim.plan,
        claim=claim.text,
        measured=measured,
        verdict=verdict,
    )


def _finding(claim: Claim, rows: checks.Rows, *, is_accelerator: bool) -> checks.Finding:
    absent = [name for name in (claim.plan, checks.BEFORE) if name not in rows]
    if absent:
        return f"{' and '.join(dict.fromkeys(absent))} not compared", None
    if claim.needs_device and not is_accelerator:
        return _NO_DEVICE, None
    return claim.check(rows[claim.plan], rows)


_SAME_LOSSES = "the losses stay what they were"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        sources=("000", "001", "002"),
        plan="blocking",
        text="the host waits 20 to 30 ms a batch",
        check=checks.waiting_between(20.0, 30.0),
    ),
    Claim(
        sources=("001", "002"),
        plan="blocking",
        text="device utilisation is 70 to 80 %",
        check=checks.utilisation_between(70.0, 80.0),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="blocking",
        text="host CPU utilisation is 60 to 70 %",
        check=checks.host_cpu_between(60.0, 70.0),
    ),
    Claim(
        sources=("004",),
        plan="blocking",
        text="a read of the loss blocks the host 0.1 to 0.5 ms",
        check=checks.read_costs(0.1, 0.5),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text=_SAME_LOSSES,
        check=checks.same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="of N reads of the loss ceil(N/10) are left (-90 %)",
        check=checks.every_tenth(reasons=("loss_read", "epoch_end")),
        needs_device=False,
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="device utilisation rises by 5 to 10 points",
        check=checks.utilisation_rises(5.0, 10.0),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="an epoch takes 2 to 5 % less time",
        check=checks.shorter(0.02, 0.05),
    ),
    Claim(
        sources=("004",),
        plan="deferred-loss",
        text="memory does not change",
        check=checks.memory_times(0.95, 1.05),
    ),
    Claim(
        sources=("001", "002"),
        plan="events",
        text="an epoch takes 3 to 5 % less time",
        check=checks.shorter(0.03, 0.05),
    ),
    Claim(
        sources=("002",),
        plan="events",
        text="memory does not change",
        check=checks.memory_times(0.95, 1.05),
    ),
    Claim(
        sources=("002",),
        plan="interval",
        text="of N host waits ceil(N/10) are left (-90 %)",
        check=checks.every_tenth(),
        needs_device=False,
    ),
    Claim(
        sources=("001", "002"),
        plan="interval",
        text="an epoch takes 3 to 5 % less time",
        check=checks.shorter(0.03, 0.05),
    ),
    Claim(
        sources=("000",),
        plan="events-interval",
        text=_SAME_LOSSES,
        check=checks.same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="of N host waits ceil(N/10) are left (-90 %)",
        check=checks.every_tenth(),
        needs_device=False,
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="the host waits 90 % less (2 to 3 ms a batch)",
        check=checks.less_waiting(0.9),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="host CPU utilisation is 80 to 85 %",
        check=checks.host_cpu_between(80.0, 85.0),
    ),
    Claim(
        sources=("000", "001", "002"),
        plan="events-interval",
        text="an epoch takes 3 to 5 % less time",
        check=checks.shorter(0.03, 0.05),
    ),
    Claim(
        sources=("001", "002"),
        plan="events-interval",
        text="it pays best of the origin's plans",
        check=checks.pays_best,
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text=_SAME_LOSSES,
        check=checks.same_losses,
        needs_device=False,
    ),
    Claim(
        sources=("002",),
        plan="four-stream",
        text="device utilisation is 90 to 95 %",
        check=checks.utilisation_between(90.0, 95.0),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="device utilisation rises by 10 points over the stage before it",
        check=checks.utilisation_rises(10.0, than="events-interval"),
    ),
    Claim(
        sources=("001", "002"),
        plan="four-stream",
        text="an epoch takes 10 to 15 % less time",
        check=checks.shorter(0.1, 0.15),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="an epoch takes 6 to 10 % less time, both stages together",
        check=checks.shorter(0.06, 0.1),
    ),
    Claim(
        sources=("002", "003"),
        plan="four-stream",
        text="an epoch takes 3 to 10 % less time than in the stage before it",
        check=checks.shorter(0.03, 0.1, than="events-interval"),
    ),
    Claim(
        sources=("002",),
        plan="four-stream",
        text="memory becomes 2 to 3 times as much",
        check=checks.memory_times(2.0, 3.0),
    ),
    Claim(
        sources=("003",),
        plan="four-stream",
        text="forward and backward overlap in part",
        check=checks.kernels_overlap,
    ),
    Claim(
        sources=("001", "002"),
        plan="full",
        text="an epoch takes 10 to 15 % less time",
        check=checks.shorter(0.1, 0.15),
    ),
    Claim(
        sources=("002",),
        plan="full",
        text="memory becomes 2 to 3 times as much",
        check=checks.memory_times(2.0, 3.0),
    ),
)
