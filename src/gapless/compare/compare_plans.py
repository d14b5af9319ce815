"""Compare plans on one workload: first that they compute the same, then how fast they are."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless.compare.bench import run_bench
from gapless.compare.ranking import recommend
from gapless.compare.settings import CompareSettings, Rounds, RunSettings, VerifySettings
from gapless.compare.verify_plan import run_verification
from gapless.compare.workload import checked_workload_function, require_float32
from gapless.device.find import find_device
from gapless.device.numerics import numerics_restored
from gapless.pipeline.loaders import LoaderPart
from gapless.plans import PLANS
from gapless.records.comparison import ComparisonReport
from gapless.report.verification_text import why_not_comparable


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gapless.compare.verify_plan import OnProgress, OnVerdict
    from gapless.compare.workload import PlanWorkloadFunction, Workload, WorkloadFunction
    from gapless.device.base import Device
    from gapless.records.comparison import PlanRow, Recommendation
    from gapless.records.verification import Verification


REFERENCE = "blocking"

# What is counted where steps give no weights.
STEPS = "steps"

# The number of passes over the batches in which bits are compared, on an accelerator and elsewhere.
# A plan that captures has to see a shape twice before it does, and its replays are to be compared.
_PASSES = {True: 6, False: 2}


def compare_plans(
    workload: WorkloadFunction,
    plans: Sequence[str] | None = None,
    *,
    device: str | torch.device | Device = "auto",
    steps: int | None = None,
    rounds: int | None = None,
    warmup_rounds: int | None = None,
    verify_steps: int | None = None,
    seed: int = 1,
    precision: str = "fp32",
    tolerance: float | None = None,
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
) -> ComparisonReport:
    """Compare plans on the same work: that they compute the same, how fast they are, which to use.

    First compares bits: every plan has to give the losses and tensors of a plain loop. Then times
    the plans in turns, and says of each where its time went.

    Args:
        workload: a function that takes a `torch.device` and builds a `gapless.Workload` on it.
            It is called for every run and every plan, after seeding torch, random and numpy, so it
            must build model, optimizer and batches anew.
        plans: names of the plans; None: all.
        device: `auto`, a device, or its name.
        steps: steps of a round, at least 1; None: 50 on a GPU, 12 on a CPU.
        rounds: timed rounds of each plan, at least 1; None: 5 or 3.
        warmup_rounds: rounds of each plan before those, at least 1; None: 3 or 1.
        verify_steps: steps in which bits are compared; 0: none. None: 48 or 6.
        seed: of every run, 0 or more.
        precision: of float32 matrix products, `fp32` or `tf32`; steps may use `torch.autocast`.
        tolerance: largest relative difference that counts as none. None compares bits, for which
            deterministic algorithms are switched on meanwhile.
        seconds: after which no further round begins; one round always runs. None: no limit.
        on_progress: called with the name of the work, how much of it is done, and how much there is.

    Returns:
        Everything that was found; `holds` says whether all plans compute the same.
        `gapless.report.comparison_text` renders it.

    Raises:
        UserError: a setting is unknown or out of range, or the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and between rounds.
    """
    require_float32(precision)
    found = find_device(device)
    settings = CompareSettings(
        run=RunSettings(device=found, seed=seed, precision=precision, tolerance=tolerance),
        rounds=Rounds.on(
            found,
            steps=steps,
            rounds=rounds,
            warmup_rounds=warmup_rounds,
            verify_steps=verify_steps,
        ),
        plans=tuple(PLANS if plans is None else plans),
        seconds=seconds,
    )
    make = checked_workload_function(workload)
    name = getattr(workload, "__qualname__", repr(workload))
    with numerics_restored():
        return run_comparison(make, settings, name=name, on_progress=on_progress)


def run_comparison(
    make: WorkloadFunction,
    settings: CompareSettings,
    *,
    name: str,
    make_for_plan: PlanWorkloadFunction | None = None,
    training: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    on_verdict: OnVerdict | None = None,
) -> ComparisonReport:
    """Compare the bits of plans, time the plans, and recommend one.

    Leaves the numerics of the process as the timed rounds needed them.

    Args:
        make: builds the workload.
        settings: what is compared.
        name: what the workload is called in the report.
        make_for_plan: builds the workload for the timed rounds of a plan; None: `make` does.
        training: settings of a training run that the workload was made from, for the report.
        on_progress: called with the name of the work, how much of it is done, and how much there is.
        on_verdict: called with each verdict on bits as soon as it is known.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and between rounds.
    """
    verification = None
    if settings.rounds.verify_steps:
        verification = compare_bits(make, settings, on_progress=on_progress, on_verdict=on_verdict)
    result = run_bench(
        make_for_plan or (lambda device, plan: make(device)), settings, on_progress=on_progress
    )
    device = settings.run.device
    rows = result.rows
    if verification is not None:
        rows = tuple(replace(row, identical=verification.is_same(row.plan)) for row in rows)
    return ComparisonReport(
        workload=name,
        device=str(device.torch_device),
        hardware=device.describe(),
        is_accelerator=device.is_accelerator,
        torch=str(torch.__version__),
        commit=_source_commit(),
        unit=result.unit or STEPS,
        settings={**_settings(settings), "training": training},
        rows=rows,
        recommendation=_recommend(rows, settings, verification),
        notes=result.notes,
        reproducible=None if verification is None else verification.is_reproducible,
        in_turns=result.in_turns,
        verification=verification,
        timelines=result.timelines,
    )


def compare_bits(
    make: WorkloadFunction,
    settings: CompareSettings,
    *,
    on_progress: OnProgress | None = None,
    on_verdict: OnVerdict | None = None,
) -> Verification:
    """Compare the bits of plans on the first few batches, which are passed over several times.

    Args:
        make: builds the workload.
        settings: what is compared; bits in at least one step.
        on_progress: called with the name of the work, how much of it is done, and how much there is.
        on_verdict: called with each verdict as soon as it is known.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and once at the end of every run.
    """
    steps = settings.rounds.verify_steps
    num_batches = -(-steps // _PASSES[settings.run.device.is_accelerator])

    def first(loader: Iterable[Any]) -> Iterator[Any]:
        yield from islice(loader, num_batches)

    def few(device: torch.device) -> Workload:
        workload = make(device)
        return replace(workload, batches=LoaderPart(workload.batches, first))

    def progress(title: str, done: int, total: int) -> None:
        assert on_progress is not None
        on_progress(f"same bits? {title}", done, total)

    return run_verification(
        few,
        VerifySettings(run=settings.run, plans=settings.plans, against=None, steps=steps),
        on_progress=None if on_progress is None else progress,
        on_verdict=on_verdict,
    )


def _recommend(
    rows: Sequence[PlanRow], settings: CompareSettings, verification: Verification | None
) -> Recommendation:
    device = settings.run.device
    return recommend(
        rows,
        is_accelerator=device.is_accelerator,
        reference=REFERENCE,
        unknown=() if verification is None else why_not_comparable(verification.itself),
    )


def _settings(settings: CompareSettings) -> dict[str, Any]:
    """Return the settings under the names that they have in reports."""
    run, rounds = settings.run, settings.rounds
    return {
        "plans": list(settings.plans),
        "steps": rounds.steps,
        "rounds": rounds.rounds,
        "warm_ups": rounds.warmup_rounds,
        "seed": run.seed,
        "precision": run.precision,
        "seconds": settings.seconds,
        "verify_steps": rounds.verify_steps,
        "tolerance": run.tolerance,
        "device_memory_bytes": run.device.total_memory_bytes(),
    }


def _source_commit() -> str | None:
    """Return the commit of gapless's source tree, with a + if it was changed; None outside one."""
    # Of this file: ROOT/src/gapless/compare/compare_plans.py.
    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    # An installed package may lie in somebody else's repository, whose commit says nothing here.
    if package != root / "src" / "gapless" or not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
