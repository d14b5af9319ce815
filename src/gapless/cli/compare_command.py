"""`gapless compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from gapless.cli.output import print_result, write_whole
from gapless.cli.parser import UsageError, file_or_folder, flag, one_of
from gapless.cli.requirements import require_extra, require_writable
from gapless.cli.shared_options import (
    add_device_option,
    add_setting_options,
    given_settings,
)
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.device.precision import Precision
from gapless.nmt.settings.config import GROUPS
from gapless.plans import PLANS, get_plan


if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from gapless.cli.parser import Parser
    from gapless.compare.workload import PlanWorkloadFunction, WorkloadFunction
    from gapless.device.base import Device
    from gapless.nmt.settings.config import TrainConfig
    from gapless.records.comparison import ComparisonReport


DETAILS = """
First compares bits: every plan has to give the losses and tensors of a plain
loop. Then times the plans in turns, says of each where its time went, and
recommends the fastest that computes the same. Without --workload it is the
model of gapless train on the embedded corpus, or on your own text with --data.

Exit code: 0 done, 1 a plan computes something else or that cannot be told,
because the workload is not reproducible or gives losses that are no finite
numbers, 2 a mistake in what was asked.
"""

# With the default rounds, well below two minutes on two cores of a CPU.
_CPU_SECONDS = 45.0

# Settings of a whole run are no options, nor are those that are set for each plan.
_OF_RUN = frozenset(
    [
        *(
            "weights",
            "score_tokenizer",
            "tags",
            "bpe_dropout",
            "store",
            "store_size",
            "store_workers",
        ),
        *("filter_length", "filter_ratio", "filter_duplicates", "filter_language"),
        *("allow_changed_data", "plan", "streams", "sync_interval", "loss_interval", "prefetch"),
        *("pin_memory", "run_ahead", "precision", "device", "init_from"),
    ]
)
_SETTINGS = {
    title: [item for item in settings if item.name not in _OF_RUN]
    for title, settings in GROUPS.items()
    if title not in ("run", "decoding")
}

_NUMBERS = tuple(field.name for field in fields(Rounds))


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    plans = parser.add_group("plan")
    plans.add_argument("--plans", metavar="A,B,...", help="which to compare; none: all")
    work = parser.add_group("workload")
    work.add_argument(
        "--workload",
        metavar="FILE:FUNCTION",
        help="Python file and the function in it that returns a gapless.Workload; none: the "
        "model of gapless train, with its options, listed last",
    )
    work.add_argument(
        "--config",
        type=file_or_folder,
        metavar="FILE",
        help="config.yaml of a run; flags win over it",
    )
    _add_counts(parser)
    report = parser.add_group("report")
    report.add_argument(
        "--json", type=file_or_folder, metavar="FILE", help="file for all figures; a row a plan"
    )
    report.add_argument("--html", type=file_or_folder, metavar="FILE", help="page for a browser")
    report.add_argument(
        "--perfetto",
        type=file_or_folder,
        metavar="FILE",
        help="timelines of all plans for ui.perfetto.dev; takes a few more steps of each",
    )
    device = add_device_option(parser)
    device.add_argument(
        "--precision",
        **one_of(get_args(Precision)),
        help="fp32 or tf32; without --workload also bf16 or fp16 [default: fp32, or as in the "
        "--config]",
    )
    add_setting_options(parser, _SETTINGS, prefix="gapless train: ")


def _add_counts(parser: Parser) -> None:
    runs = parser.add_group("run")
    gpu, cpu = Rounds.for_gpu(), Rounds.for_cpu()
    for field, names, text in (
        ("steps", ["--steps"], "steps of a round"),
        ("rounds", ["--rounds"], "timed rounds of each plan"),
        ("warmup_rounds", ["--warmup-rounds", "--warm-ups"], "rounds before those"),
        ("verify_steps", ["--verify-steps"], "steps in which bits are compared; 0: none"),
    ):
        default = f"[default: {getattr(gpu, field)} on a GPU, {getattr(cpu, field)} on a CPU]"
        runs.add_argument(*names, type=int, metavar="N", help=f"{text} {default}")
    runs.add_argument(
        "--tolerance",
        type=float,
        metavar="NUMBER",
        help="largest relative difference that is allowed; none: compare bits",
    )
    runs.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of torch, numpy and random, for every plan [default: 1]",
    )


def run(options: Namespace) -> int:
    """Print what is compared, how plans differ and which to take; return 1 where bits differ."""
    if options.workload is None:
        require_extra("nmt", "gapless compare without --workload")
    from gapless.device.find import find_device
    from gapless.report.comparison_text import comparison_text
    from gapless.report.html.comparison_page import comparison_page
    from gapless.report.json_reports import comparison_json
    from gapless.report.perfetto import perfetto_json

    asked = _settings(options, find_device(options.device))
    for name in ("json", "html", "perfetto"):
        if (path := getattr(options, name)) is not None:
            require_writable(path, flag(name))
    # Before a workload's file can use the device: cuBLAS reads its setting at its first call.
    asked.run.set_numerics(compares=bool(asked.rounds.verify_steps))
    given = given_settings(options, _SETTINGS)
    work = _work(options.workload, asked, config=options.config, given=given)
    print_result("\n".join(_facts(asked, work)))
    report = _run(asked, work)
    print_result(f"\n{comparison_text(report)}")
    if options.json is not None:
        write_whole(options.json, comparison_json(report).encode())
        print_result(f"written to {options.json}")
    if options.html is not None:
        timeline_file = "" if options.perfetto is None else options.perfetto.name
        page = comparison_page(report, timeline_file=timeline_file)
        write_whole(options.html, page.encode())
        print_result(f"written to {options.html}; open it in a browser")
    if options.perfetto is not None:
        write_whole(
            options.perfetto, perfetto_json(*((one, ()) for one in report.timelines)).encode()
        )
        print_result(f"written to {options.perfetto}; open it at ui.perfetto.dev")
    return 0 if report.holds else 1


def _precision_of(config: Path | None) -> str:
    from gapless.nmt.settings.config import make_config

    return "fp32" if config is None else make_config({}, file=config).precision


def _settings(options: Namespace, device: Device) -> CompareSettings:
    numbers = {name: getattr(options, name) for name in _NUMBERS}
    is_asked = any(number is not None for number in numbers.values())
    return CompareSettings(
        run=RunSettings(
            device=device,
            seed=options.seed,
            precision=options.precision
            or _precision_of(None if options.workload else options.config),
            tolerance=options.tolerance,
        ),
        rounds=Rounds.on(device, **numbers),
        plans=_names(options.plans),
        # Rounds that were asked for are measured however long they last.
        seconds=None if is_asked or device.is_accelerator else _CPU_SECONDS,
        timelines=options.perfetto is not None,
    )


def _names(plans: str | None) -> tuple[str, ...]:
    names = PLANS if plans is None else [name.strip() for name in plans.split(",")]
    return tuple(name for name in names if name)


# --- the workload ---


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What is compared.

    Attributes:
        name: of it.
        make: builds it for a plan.
        one: builds the same for all plans.
        config: of a training run.
    """

    name: str
    make: PlanWorkloadFunction
    one: WorkloadFunction
    config: TrainConfig | None = None


def _work(
    spec: str | None, asked: CompareSettings, *, config: Path | None, given: dict[str, Any]
) -> _Work:
    if spec is None:
        from gapless.cli.workloads import in_one_process, translation_workload
        from gapless.compare.compare_plans import REFERENCE
        from gapless.nmt.run.task import prepare
        from gapless.nmt.settings.effective_settings import resolve

        settings = _config(asked, config=config, given=given)
        # Refuses what cannot be laid out, before the text is read.
        resolve(settings, is_accelerator=asked.run.device.is_accelerator)
        task, steps = prepare(settings), asked.rounds.steps
        return _Work(
            name=f"model of gapless train on {settings.data or 'the embedded corpus'}",
            make=translation_workload(settings, task, steps=steps),
            one=in_one_process(settings, task, plan=get_plan(REFERENCE), steps=steps),
            config=settings,
        )
    if given or config is not None:
        extra = ", ".join(map(flag, ["config"] * (config is not None) + list(given)))
        raise UsageError(f"--workload brings a model and data of its own; leave out {extra}")
    from gapless.cli.workloads import users_workload

    users = users_workload(spec, precision=asked.run.precision)
    return _Work(name=spec, make=lambda torch_device, plan: users(torch_device), one=users)


def _config(asked: CompareSettings, *, config: Path | None, given: dict[str, Any]) -> TrainConfig:
    from gapless.nmt.settings.config import make_config

    flags = {**given, "precision": asked.run.precision, "seed": asked.run.seed}
    # One layout of batches for all plans: the one that can be captured. Compiled layers round
    # differently, so they are for all plans or for none.
    flags["plan"] = "captured"
    made = make_config(flags, file=config)
    return made if made.compile else replace(made, compile=False)


def _facts(asked: CompareSettings, work: _Work) -> list[str]:
    import torch

    from gapless.records.verification import PLAIN_LOOP
    from gapless.report.comparison_text import NO_GAPS

    run, rounds = asked.run, asked.rounds
    bits = "deterministic algorithms, every bit"
    if run.tolerance is not None:
        bits = f"within {run.tolerance:g}"
    lines = [
        f"workload  {work.name}",
        f"device    {run.device.torch_device} ({run.device.describe()}), "
        f"torch {torch.__version__}, {run.precision}",
        f"bits      {rounds.verify_steps} steps against {PLAIN_LOOP}, {bits}"
        if rounds.verify_steps
        else "bits      not compared",
        f"plans     {', '.join(asked.plans)}",
        f"rounds    {rounds.warmup_rounds} for warming up and {rounds.rounds} timed, of "
        f"{rounds.steps} steps each, seed {run.seed}",
    ]
    if work.config is not None and run.device.is_accelerator:
        lines.append("batches   laid out under every plan as gapless train does under captured")
    if not run.device.is_accelerator:
        lines += [f"note      {NO_GAPS[0]}", f"          {NO_GAPS[1]}"]
    return [*lines, ""]


# --- running ---


def _run(asked: CompareSettings, work: _Work) -> ComparisonReport:
    """Print every verdict as soon as it is known; return the report."""
    from gapless.cli.progress import Steps
    from gapless.cli.workloads import users_errors
    from gapless.compare.compare_plans import run_comparison
    from gapless.report.verification_text import verdict_lines

    with Steps("done") as shown, users_errors():
        return run_comparison(
            work.one,
            asked,
            name=work.name,
            make_for_plan=work.make,
            training=None if work.config is None else asdict(work.config),
            on_progress=shown.show,
            on_verdict=lambda found: shown.print_result(verdict_lines(found)),
        )
