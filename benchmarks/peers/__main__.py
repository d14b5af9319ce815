"""`python -m benchmarks.peers --case base32 --out DIR`: every row, in interleaved rounds."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.facts import place_and_time
from benchmarks.peers import report
from benchmarks.peers.cases import TINY, Case, CaseFile, base32, base8192
from benchmarks.peers.race import Race, Schedule
from benchmarks.peers.rows import Row, all_rows, make_peer
from benchmarks.peers.worker import RowProcess
from benchmarks.processes import replace_text
from gapless.device.find import find_device
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for and write table, JSON and plot; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        rows = _chosen(options.only, all_rows(compiled_shapes=options.compiled_shapes))
        device = str(find_device(options.device).torch_device)
        case = _case(options)
        folder = Path(options.out)
        logs = folder / f"peers-{case.name}-logs"
        logs.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    schedule = Schedule(
        rounds=options.rounds,
        warmup=options.warmup,
        steps=options.steps,
        profile_steps=options.profile_steps if device != "cpu" else 0,
        setup_limit_s=options.setup_limit,
        time_limit_s=options.time_limit,
    )
    _prepare_environment(device)
    stem = folder / f"peers-{case.name}"
    facts = _facts(case, schedule, device)

    def write(race: Race) -> None:
        _write(stem, facts, race)

    def start(case_file: CaseFile, row: Row) -> RowProcess:
        make = partial(make_peer, name=row.name, compiled_shapes=options.compiled_shapes)
        return RowProcess(make, case=case_file, device=device, log=logs / f"{row.name}.log")

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
    table = stem.with_suffix(".md").read_text(encoding="utf-8")
    print(f"\n{table}\nwritten: {stem}.json, .md, .svg")
    return 0 if any(result.rounds for result in race.results) else 1


def _prepare_environment(device: str) -> None:
    # Warnings of frameworks, and look-ups on the network that none of the rows needs.
    os.environ |= {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    if device != "cpu":
        # As torchrun sets it: a GPU's row has no use for threads on every core, times the rows.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--case", choices=("base32", "base8192"), default="base32")
    parser.add_argument("--data", help="base8192: folder or file of sentence pairs")
    parser.add_argument("--src", default="en", help="base8192: source side")
    parser.add_argument("--tgt", default="zh", help="base8192: target side")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="base8192: subwords a side")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="base8192: of a batch")
    parser.add_argument("--out", default="runs/results", help="folder for table, JSON and plot")
    parser.add_argument("--only", help="names of rows, with commas; none: all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=8, help="steps before the timed ones")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of a round")
    parser.add_argument("--profile-steps", type=int, default=10, help="0: no profile")
    parser.add_argument("--workers", type=int, default=4, help="loader processes of each row")
    parser.add_argument("--compiled-shapes", type=int, default=2, help="of the row compiled")
    parser.add_argument("--setup-limit", type=float, default=180.0, help="seconds a row may take")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="begin no round and profile no row after so long",
    )
    parser.add_argument("--tiny", action="store_true", help="a small model: does it all run?")
    return parser


def _chosen(only: str | None, rows: list[Row]) -> list[Row]:
    if only is None:
        return rows
    by_name = {row.name: row for row in rows}
    names = [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UserError(f"unknown row {unknown[0]!r}; the rows are {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _case(options: argparse.Namespace) -> Case:
    sizes: dict[str, Any] = TINY if options.tiny else {}
    common = {"workers": options.workers, "precision": options.precision, **sizes}
    if options.case == "base32":
        return base32(num_pairs=2_000 if options.tiny else 40_000, **common)
    if options.data is None:
        raise UserError("case base8192 needs sentence pairs; name a folder or file with --data")
    return base8192(
        data=options.data,
        src=options.src,
        tgt=options.tgt,
        vocab_size=options.vocab_size,
        batch_tokens=options.batch_tokens,
        **common,
    )


def _facts(case: Case, schedule: Schedule, device: str) -> dict[str, Any]:
    config = case.config
    budget = f"{config.batch_size} sentences" if config.batch_size else None
    return {
        "case": case.name,
        "model": f"Transformer {config.d_model}, {config.encoder_layers} + "
        f"{config.decoder_layers} layers, vocabularies {len(case.vocabs.src):,} and "
        f"{len(case.vocabs.tgt):,}, {config.precision}",
        "batches": f"Batches of {budget or f'{config.batch_tokens:,} tokens'}, "
        f"{len(case.train):,} pairs, {case.workers} loader processes a row",
        "measured": f"Median of interleaved rounds of {schedule.steps} steps after "
        f"{schedule.warmup}, every row in a process of its own",
        **place_and_time(device, module="benchmarks.peers"),
        "schedule": asdict(schedule),
        "config": asdict(config),
    }


def _write(stem: Path, facts: dict[str, Any], race: Race) -> None:
    rows = [report.summarize(result) for result in race.results]
    report.add_ratios(rows)
    facts = {**facts, "rounds_done": race.rounds_done, "shortened": race.shortened(), "rows": rows}
    replace_text(stem.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    replace_text(stem.with_suffix(".md"), report.to_markdown(facts))
    replace_text(stem.with_suffix(".svg"), report.to_svg(facts))


if __name__ == "__main__":
    sys.exit(main())
