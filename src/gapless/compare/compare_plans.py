"""Compare plans on one workload: first that they compute the same, then how fast they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from gapless.compare.bench import BenchSettings, run_bench
from gapless.compare.plan_rows import make_row
from gapless.compare.ranking import recommend
from gapless.compare.verdict_lines import not_comparable_lines
from gapless.compare.verify_plan import Comparison, VerifySettings, verify
from gapless.pipeline.loaders import LoaderPart
from gapless.records.comparison import ComparisonReport


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gapless.compare.bench import OnProgress
    from gapless.compare.entrant import PlanWorkload
    from gapless.compare.workload import Workload
    from gapless.compare.workload_file import WorkloadFunction
    from gapless.records.comparison import PlanRow, Recommendation


REFERENCE = "blocking"

# What is counted where steps give no weights.
STEPS = "steps"

# Batches are gone through so often while bits are compared. A plan that captures has to see a
# shape twice before it does, and what is to be compared are its replays.
_PASSES = {True: 6, False: 2}


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What is compared, and how.

    Attributes:
        bench: what is timed.
        weights: of the criteria of the recommendation, summing to 1.
        verify_steps: steps in which bits are compared; 0 compares none.
        tolerance: largest relative difference that counts as none; None: not one bit.
    """

    bench: BenchSettings
    weights: dict[str, float]
    verify_steps: int
    tolerance: float | None = None

    def verify_settings(self) -> VerifySettings:
        """Return what is compared bit by bit.

        Raises:
            UserError: steps, seed or tolerance are out of range.
        """
        return VerifySettings(
            against=REFERENCE,
            steps=self.verify_steps,
            seed=self.bench.seed,
            device=self.bench.device,
            precision=self.bench.precision,
            tolerance=self.tolerance,
        )


def verify_plans(
    make: WorkloadFunction,
    settings: CompareSettings,
    *,
    on_progress: OnProgress | None = None,
) -> Iterator[Comparison]:
    """Compare the reference with itself, and then every plan with it, bit by bit.

    Args:
        make: builds the workload, the same for every plan.
        settings: what is compared.
        on_progress: called with what is under way, how much is done, and how much there is.

    Yields:
        One comparison after the other; only the first if the workload is not reproducible.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and once at the end of every run.
    """
    steps = settings.verify_steps
    num_batches = -(-steps // _PASSES[settings.bench.device.is_accelerator])

    def first(loader: Iterable[Any]) -> Iterator[Any]:
        yield from islice(loader, num_batches)

    def few(device: torch.device) -> Workload:
        workload = make(device)
        return replace(workload, batches=LoaderPart(workload.batches, first))

    on_step: Callable[[str, int], None] | None = None
    if on_progress is not None:
        # Bound here, because a closure would not see that it is not None.
        shown = on_progress

        def on_step(title: str, step: int) -> None:
            shown(f"same bits? {title}", step, steps)

    yield from verify(few, settings.verify_settings(), plans=settings.bench.plans, on_step=on_step)


def compare(
    make: PlanWorkload,
    settings: CompareSettings,
    *,
    workload: str,
    verdicts: dict[str, bool],
    itself: Comparison | None,
    commit: str | None,
    on_progress: OnProgress | None = None,
) -> ComparisonReport:
    """Time plans on the same work, and recommend one.

    Args:
        make: builds the workload for a plan.
        settings: what is compared.
        workload: what it is called.
        verdicts: whether each plan computes what the reference does, from `verify_plans`.
        itself: the reference compared with itself, the first of `verify_plans`; None if bits were
            not to be compared. If it does not hold no plan is recommended.
        commit: of the source tree, if it is known.
        on_progress: called with what is under way, how much is done, and how much there is.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and between rounds.
    """
    bench = settings.bench
    result = run_bench(make, bench, on_progress=on_progress)
    is_accelerator = bench.device.is_accelerator
    rows = tuple(
        make_row(
            found,
            identical=verdicts.get(found.plan),
            is_accelerator=is_accelerator,
            compile_seconds=result.compile_seconds,
        )
        for found in result.plans
    )
    return ComparisonReport(
        workload=workload,
        device=str(bench.device.torch_device),
        hardware=bench.device.describe(),
        is_accelerator=is_accelerator,
        torch=str(torch.__version__),
        commit=commit,
        unit=result.plans[0].unit or STEPS,
        settings=_settings(settings),
        rows=rows,
        recommendation=_recommend(rows, settings, itself),
        notes=result.notes,
        reproducible=_is_reproducible(itself),
        in_turns=result.in_turns,
    )


def _is_reproducible(itself: Comparison | None) -> bool | None:
    if itself is None:
        return None
    # Of a workload that gives NaN it is not known.
    return None if itself.agrees and not itself.holds else itself.holds


def _recommend(
    rows: Sequence[PlanRow], settings: CompareSettings, itself: Comparison | None
) -> Recommendation:
    device = settings.bench.device
    return recommend(
        rows,
        weights=settings.weights,
        is_accelerator=device.is_accelerator,
        total_memory_bytes=device.total_memory_bytes(),
        reference=REFERENCE,
        unknown=() if itself is None else not_comparable_lines(itself),
    )


def _settings(settings: CompareSettings) -> dict[str, Any]:
    bench = {
        name: value
        for name, value in vars(settings.bench).items()
        if name not in ("device", "plans")
    }
    rest = {
        "verify_steps": settings.verify_steps,
        "tolerance": settings.tolerance,
        "device_memory_bytes": settings.bench.device.total_memory_bytes(),
    }
    return {"plans": list(settings.bench.plans), **bench, **rest}
