"""`python -m benchmarks.ranks --case base32 --json FILE`: one GPU and several, in turns."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.facts import place_and_time
from benchmarks.peers.cases import TINY, Case, CaseFile, base32, base8192, big25k
from benchmarks.peers.race import Race, Schedule
from benchmarks.processes import replace_text
from benchmarks.ranks.figures import summarize
from benchmarks.ranks.page import write_page
from benchmarks.ranks.row_group import RowGroup
from benchmarks.ranks.rows import RankRow, all_rows, row_named
from gapless.device.find import find_device, num_gpus
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Sequence


_CASES = ("base32", "base8192", "big25k")

# Without `eager`, which is run when it is named.
_ROWS = "plain,accelerate,captured,ddp,accelerate-ddp,flat,no-sum"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for, append to the file, write its page; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        rows = _chosen(options.only)
        devices = _devices(options)
        case = _case(options)
        calls = _calls_in(options.json)
        logs = options.json.parent / f"{options.json.stem}-logs"
        logs.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    schedule = Schedule(
        rounds=options.rounds,
        warmup=options.warmup,
        steps=options.steps,
        profile_steps=options.profile_steps if devices[0] != "cpu" else 0,
        setup_limit_s=options.setup_limit,
        time_limit_s=options.time_limit,
    )
    # Warnings of frameworks, and look-ups on the network that none of the rows needs.
    os.environ |= {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    # As torchrun sets it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = _facts(options, case, schedule, devices)

    def start(case_file: CaseFile, row: RankRow) -> RowGroup:
        own = devices[:1] if row.is_alone else devices
        return RowGroup(row, case=case_file, devices=own, logs=logs, keeps_traces=options.traces)

    def write(race: Race) -> None:
        found = summarize(race.results, world=len(devices))
        done = {"rounds_done": race.rounds_done, "shortened": race.shortened(), "rows": found}
        _write(options.json, [*calls, {**facts, **done}])

    with CaseFile.of(case) as case_file:
        race = Race(
            rows,
            schedule,
            start=partial(start, case_file),
            say=lambda line: print(line, flush=True),
            on_round=write,
        )
        race.run()
    write(race)
    page = options.json.with_suffix(".md")
    print(f"\n{page.read_text(encoding='utf-8')}\nwritten: {options.json}, {page}")
    return 0 if all(result.rounds for result in race.results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    names = [row.name for row in all_rows()]
    parser.add_argument("--case", choices=_CASES, default="base32")
    parser.add_argument(
        "--only", default=_ROWS, help=f"rows, with commas, of {', '.join(names)} [{_ROWS}]"
    )
    parser.add_argument("--json", type=Path, default=Path("docs/results/several-gpus.json"))
    parser.add_argument("--ranks", type=int, default=2, help="GPUs of the rows that have several")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--data", help="folder or file of sentence pairs; none: synthetic ones")
    parser.add_argument("--src", default="en", help="source side of the data")
    parser.add_argument("--tgt", default="zh", help="target side")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="subwords a side")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=12, help="steps before the timed ones")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of a round")
    parser.add_argument("--profile-steps", type=int, default=10, help="0: no profile")
    parser.add_argument("--traces", action="store_true", help="keep the traces of profiles")
    parser.add_argument("--workers", type=int, default=2, help="loader processes of each rank")
    parser.add_argument("--setup-limit", type=float, default=240.0, help="seconds a row may take")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="begin no round and profile no row after so long",
    )
    parser.add_argument("--tiny", action="store_true", help="a small model: does it all run?")
    return parser


def _chosen(only: str) -> list[RankRow]:
    return [row_named(name.strip()) for name in only.split(",")]


def _devices(options: argparse.Namespace) -> list[str]:
    if options.ranks < 2:
        raise UserError(f"--ranks is {options.ranks}, expected at least 2")
    if options.device == "cpu":
        return ["cpu"] * options.ranks
    if num_gpus() < options.ranks:
        raise UserError(
            f"{options.ranks} ranks need as many GPUs, found {num_gpus()}; "
            "use --device cpu to see whether it all runs"
        )
    return [f"cuda:{rank}" for rank in range(options.ranks)]


def _case(options: argparse.Namespace) -> Case:
    common = {"workers": options.workers, "precision": options.precision}
    tiny: dict[str, Any] = TINY if options.tiny else {}
    if options.case == "base32":
        return base32(**common, num_pairs=500 if options.tiny else 40_000, **tiny)
    text = {"data": options.data, "src": options.src, "tgt": options.tgt}
    text["vocab_size"] = 1_000 if options.tiny else options.vocab_size
    # Enough for a round of each rank: 52 batches of big25k are 1.3 million tokens.
    text["num_pairs"] = 500 if options.tiny else 160_000
    if options.case == "base8192":
        return base8192(**common, **text, **tiny, batch_tokens=400 if options.tiny else 8192)
    return big25k(**common, **text, **tiny, target_tokens=500 if options.tiny else 25_000)


def _calls_in(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    calls: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return calls


def _facts(
    options: argparse.Namespace, case: Case, schedule: Schedule, devices: list[str]
) -> dict[str, Any]:
    config = case.config
    budget = (
        f"{config.batch_size} sentences"
        if config.batch_size
        else f"{config.batch_tokens:,} tokens of the longer side"
    )
    return {
        **place_and_time(str(find_device(devices[0]).torch_device), module="benchmarks.ranks"),
        "case": case.name,
        "is_tiny": options.tiny,
        "gpus": len(devices),
        "model": f"Transformer {config.d_model}, {config.encoder_layers} + "
        f"{config.decoder_layers} layers, {config.precision}",
        "batches": f"{budget} a batch and GPU, {len(case.train):,} "
        f"{'pairs of text' if config.data else 'synthetic pairs'}, {case.workers} loader "
        "processes a rank",
        "measured": f"Rounds of {schedule.steps} steps after {schedule.warmup}, every rank in a "
        "process of its own",
        "environment": _environment(),
        "schedule": asdict(schedule),
    }


def _environment() -> list[str]:
    """Return what was set for NCCL, and its version."""
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "TORCH_NCCL_"))
    ]
    if torch.cuda.is_available():
        settings.append(f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}")
    return settings


def _write(path: Path, calls: list[dict[str, Any]]) -> None:
    replace_text(path, json.dumps(calls, indent=1) + "\n")
    write_page(path, calls)


if __name__ == "__main__":
    sys.exit(main())
