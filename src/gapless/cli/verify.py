"""`gapless verify`."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Optional

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn

from gapless.compare.load import load_workload
from gapless.compare.text import comparison_lines, waits_line
from gapless.compare.verify import VerifySettings, verify as compare_runs
from gapless.compare.workload import Workload
from gapless.device.select import resolve_device, set_numerics
from gapless.errors import UserError
from gapless.nmt.config import make_config
from gapless.nmt.parts import make_parts
from gapless.nmt.task import prepare


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.compare.load import WorkloadFunction
    from gapless.compare.run import RunRecord
    from gapless.compare.verify import Comparison


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

    Exit code: 0 identical, 1 different or not reproducible, 2 a mistake in what was asked.
    """
    settings = VerifySettings(
        plan=plan,
        against=against,
        steps=steps,
        seed=seed,
        device=resolve_device(device),
        precision=precision,
        tolerance=tolerance,
    )
    # Before a workload's file can use the device: cuBLAS reads its setting at its first call.
    set_numerics(settings.device, precision, deterministic=tolerance is None)
    make = _demo(settings) if workload is None else _users(workload, settings)
    typer.echo("\n".join(_facts(settings, workload)))
    if not _all_hold(make, settings):
        raise typer.Exit(1)


def _demo(settings: VerifySettings) -> WorkloadFunction:
    config = make_config(
        {"dropout": _DROPOUT, "precision": settings.precision, "seed": settings.seed}
    )
    task = prepare(config)

    def make(device: torch.device) -> Workload:
        parts = make_parts(
            config, task, device=resolve_device(device), total_updates=settings.steps
        )
        return Workload(
            model=parts.model,
            optimizer=parts.step.optimizer,
            batches=parts.loader,
            step=parts.step,
        )

    return make


def _users(spec: str, settings: VerifySettings) -> WorkloadFunction:
    if settings.precision not in ("fp32", "tf32"):
        raise UserError(
            f"precision {settings.precision} is up to the step of a workload, which can use "
            "torch.autocast; with --workload choose fp32 or tf32"
        )
    return load_workload(spec)


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
    bar = _StepBar(settings.steps)
    on_step = bar.show if sys.stderr.isatty() else None
    runs: dict[str, RunRecord] = {}
    holds = True
    try:
        for comparison in _with_users_errors(compare_runs(make, settings, on_step=on_step)):
            bar.close()
            runs |= {run.plan: run for run in (comparison.theirs, comparison.ours)}
            holds = comparison.holds
            for line in comparison_lines(comparison):
                typer.echo(line)
    finally:
        bar.close()
    typer.echo(waits_line(runs))
    return holds


def _with_users_errors(comparisons: Iterator[Comparison]) -> Iterator[Comparison]:
    """Let an OSError of the workload out as Python prints it: here it is no full disk of ours."""
    try:
        yield from comparisons
    except OSError as error:
        traceback.print_exception(error)
        raise typer.Exit(1) from error
    except RuntimeError as error:
        if "use_deterministic_algorithms" in str(error):
            error.add_note(
                "gapless verify switched deterministic algorithms on; with a --tolerance, such "
                "as 1e-5, it allows others."
            )
        raise


class _StepBar:
    """Shows on a terminal which run is under way and how far it is."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._title = ""
        self._bar: Bar | None = None

    def show(self, title: str, step: int) -> None:
        """Move the bar of the run of this title, or draw it."""
        if title != self._title or self._bar is None:
            self._start(title)
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def _start(self, title: str) -> None:
        self.close()
        self._title = title
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(title, total=self._steps)
        self._bar.start()
