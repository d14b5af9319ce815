"""`gapless verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.cli.output import print_result
from gapless.cli.parser import one_of
from gapless.cli.requirements import require_extra
from gapless.cli.shared_options import add_device_option
from gapless.device.precision import Precision
from gapless.plans import PLANS


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser
    from gapless.compare.settings import VerifySettings
    from gapless.compare.workload import WorkloadFunction
    from gapless.records.verification import Verification


DETAILS = """
Runs a plain loop twice, then the other plan and PLAN, each from the same seed
and with deterministic algorithms, and compares the loss of every step and,
after every step, the batch, gradients, optimizer state, buffers and
parameters. The plain loop moves each batch by .to() and reads each loss by
.item(): nothing of gapless is in it.

Exit code: 0 identical, 1 different, not reproducible or a loss that is no
finite number, 2 a mistake in what was asked, 3 nothing was verified: PLAN
captures steps, and none of them was replayed, as on a CPU.
"""

_DROPOUT = 0.1


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless verify [options] [PLAN]"
    plan = parser.add_group("plan")
    plan.add_argument(
        "plan",
        nargs="?",
        default="gapless",
        **one_of(PLANS, metavar="PLAN"),
        help="plan in question; see gapless plans [default: gapless]",
    )
    plan.add_argument(
        "--against",
        default="blocking",
        **one_of(PLANS),
        help="plan that it is compared with beside the plain loop [default: blocking]",
    )
    work = parser.add_group("workload")
    work.add_argument(
        "--workload",
        metavar="FILE:FUNCTION",
        help="Python file and the function in it that returns a gapless.Workload; none: the "
        "model of gapless train on the embedded corpus, with dropout",
    )
    runs = parser.add_group("run")
    runs.add_argument(
        "--steps", type=int, default=50, metavar="N", help="of every run [default: 50]"
    )
    runs.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of torch, numpy and random, in every run [default: 1]",
    )
    runs.add_argument(
        "--tolerance",
        type=float,
        metavar="NUMBER",
        help="largest relative difference of a loss, or of a tensor at the end, that is allowed, "
        "for algorithms that are not deterministic; none: compare bits",
    )
    runs.add_argument(
        "--second-opinion",
        action="store_true",
        help="say which reads and writes of a step TorchDynamo names, and which of them gapless "
        "compares; changes no exit code",
    )
    device = add_device_option(parser)
    device.add_argument(
        "--precision",
        default="fp32",
        **one_of(get_args(Precision)),
        help="fp32 or tf32; without --workload also bf16 or fp16 [default: fp32]",
    )


def run(options: Namespace) -> int:
    """Print every comparison as soon as it is known; return 0 if all of them hold.

    Otherwise 1, or 3 if they hold but no step was replayed under a plan that captures steps.
    """
    if options.workload is None:
        require_extra("nmt", "gapless verify without --workload")
    from gapless.cli.workloads import users_workload
    from gapless.compare.settings import RunSettings, VerifySettings
    from gapless.device.find import find_device
    from gapless.report.verification_text import nothing_lines, waits_lines

    settings = VerifySettings(
        run=RunSettings(
            device=find_device(options.device),
            seed=options.seed,
            precision=options.precision,
            tolerance=options.tolerance,
        ),
        plans=(options.plan,),
        against=options.against,
        steps=options.steps,
    )
    # Before a workload's file can use the device: cuBLAS reads its setting at its first call.
    settings.run.set_numerics(compares=True)
    make = (
        _demo(settings)
        if options.workload is None
        else users_workload(options.workload, precision=options.precision)
    )
    print_result("\n".join(_facts(settings, options.workload)))
    found = _verified(make, settings)
    for line in [*waits_lines(found), *nothing_lines(found)]:
        print_result(line)
    if options.second_opinion:
        _print_second_opinion(make, settings)
    if not found.holds:
        return 1
    return 3 if found.show_nothing else 0


def _demo(settings: VerifySettings) -> WorkloadFunction:
    from gapless.cli.workloads import in_one_process
    from gapless.nmt.run.task import prepare
    from gapless.nmt.settings.config import make_config
    from gapless.plans import get_plan

    run = settings.run
    config = make_config({"dropout": _DROPOUT, "precision": run.precision, "seed": run.seed})
    (plan,) = settings.plans
    return in_one_process(config, prepare(config), plan=get_plan(plan), steps=settings.steps)


def _facts(settings: VerifySettings, workload: str | None) -> list[str]:
    import torch

    from gapless.records.verification import PLAIN_LOOP

    run = settings.run
    demo = f"model of gapless train on the embedded corpus, dropout {_DROPOUT}"
    bound = "deterministic algorithms, every bit"
    if run.tolerance is not None:
        bound = f"tolerance {run.tolerance:g}"
    (plan,) = settings.plans
    others = PLAIN_LOOP if plan == settings.against else f"{PLAIN_LOOP} and {settings.against}"
    return [
        f"workload  {workload or demo}",
        f"plans     {plan} against {others}, {bound}",
        f"device    {run.device.torch_device} ({run.device.describe()}), "
        f"torch {torch.__version__}, {run.precision}",
        f"steps     {settings.steps}, seed {run.seed}",
    ]


def _print_second_opinion(make: WorkloadFunction, settings: VerifySettings) -> None:
    from gapless.cli.workloads import users_errors
    from gapless.compare.second_opinion import opinion_on_workload
    from gapless.report.verification_text import second_opinion_lines

    with users_errors():
        opinion = opinion_on_workload(make, settings.run)
    for line in second_opinion_lines(opinion):
        print_result(line)


def _verified(make: WorkloadFunction, settings: VerifySettings) -> Verification:
    """Print every verdict as soon as it is known; return them all."""
    from gapless.cli.progress import Steps
    from gapless.cli.workloads import users_errors
    from gapless.compare.verify_plan import run_verification
    from gapless.report.verification_text import verdict_lines

    with Steps("steps") as shown, users_errors():
        return run_verification(
            make,
            settings,
            on_progress=shown.show,
            on_verdict=lambda found: shown.print_result(verdict_lines(found)),
        )
