"""`gapless verify`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import torch
import typer

from gapless.cli.progress import StepBar
from gapless.cli.workloads import (
    in_one_process,
    users_errors,
    users_workload,
)
from gapless.compare.verdict_lines import comparison_lines, waits_line
from gapless.compare.verify_plan import VerifySettings, verify as compare_runs
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.nmt.run.config import make_config
from gapless.nmt.run.task import prepare
from gapless.plans import get_plan


if TYPE_CHECKING:
    from gapless.compare.plan_run import RunRecord
    from gapless.compare.workload_file import WorkloadFunction


_DROPOUT = 0.1


def verify(
    plan: Annotated[str, typer.Argument(help="Plan in question; see gapless plans.")] = "gapless",
    against: Annotated[str, typer.Option(help="Plan that it is compared with.")] = "blocking",
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 50,
    seed: Annotated[int, typer.Option(help="Of torch, numpy and random, in every run.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="fp32 or tf32; without --workload also bf16 or fp16.")
    ] = "fp32",
    tolerance: Annotated[
        Optional[float],
        typer.Option(
            help="Largest relative difference of a loss, or of a tensor at the end, that is "
            "allowed; for algorithms that are not deterministic. None: not one bit."
        ),
    ] = None,
    workload: Annotated[
        Optional[str],
        typer.Option(
            metavar="FILE:FUNCTION",
            help="Python file and the function in it that returns a gapless.Workload; none: the "
            "model of gapless train on the embedded corpus, with dropout.",
        ),
    ] = None,
) -> None:
    """Verify that a plan changes nothing: the same bits in every loss and tensor.

    Runs the other plan twice and then PLAN, each from the same seed and with deterministic
    algorithms, and compares the loss of every step and, after every step, the batch, gradients,
    optimizer state, buffers and parameters.

    Exit code: 0 identical, 1 different, not reproducible or a loss that is no finite number, 2 a
    mistake in what was asked.
    """
    settings = VerifySettings(
        plan=plan,
        against=against,
        steps=steps,
        seed=seed,
        device=find_device(device),
        precision=precision,
        tolerance=tolerance,
    )
    # Before a workload's file can use the device: cuBLAS reads its setting at its first call.
    set_numerics(settings.device, precision, deterministic=tolerance is None)
    make = _demo(settings) if workload is None else users_workload(workload, precision=precision)
    typer.echo("\n".join(_facts(settings, workload)))
    if not _all_hold(make, settings):
        raise typer.Exit(1)


def _demo(settings: VerifySettings) -> WorkloadFunction:
    config = make_config(
        {"dropout": _DROPOUT, "precision": settings.precision, "seed": settings.seed}
    )
    return in_one_process(
        config, prepare(config), plan=get_plan(settings.plan), steps=settings.steps
    )


def _facts(settings: VerifySettings, workload: str | None) -> list[str]:
    device = settings.device
    demo = f"model of gapless train on the embedded corpus, dropout {_DROPOUT}"
    bound = (
        "deterministic algorithms, every bit"
        if settings.tolerance is None
        else f"tolerance {settings.tolerance:g}"
    )
    return [
        f"workload  {workload or demo}",
        f"plans     {settings.plan} against {settings.against}, {bound}",
        f"device    {device.torch_device} ({device.describe()}), torch {torch.__version__}, "
        f"{settings.precision}",
        f"steps     {settings.steps}, seed {settings.seed}",
    ]


def _all_hold(make: WorkloadFunction, settings: VerifySettings) -> bool:
    """Print every comparison as soon as it is known; return whether all of them hold."""
    bar = StepBar("steps")
    on_step = partial(_show, bar, settings.steps) if sys.stderr.isatty() else None
    runs: dict[str, RunRecord] = {}
    holds = True
    try:
        with users_errors():
            for comparison in compare_runs(make, settings, on_step=on_step):
                bar.close()
                runs |= {run.plan: run for run in (comparison.theirs, comparison.ours)}
                holds = comparison.holds
                for line in comparison_lines(comparison):
                    typer.echo(line)
    finally:
        bar.close()
    typer.echo(waits_line(runs))
    return holds


def _show(bar: StepBar, steps: int, title: str, step: int) -> None:
    bar.show(title, step, of=steps)
