r"""Train on a million pairs in three commands, two of them killed: are the losses those of one, and is memory flat?

    PYTHONPATH=src python3 -m benchmarks.million FOLDER TEXT --part 1 --seconds 480
    PYTHONPATH=src NCCL_NVLS_ENABLE=0 python3 -m benchmarks.million FOLDER TEXT --part 1 --seconds 480 --gpus 2
    PYTHONPATH=src python3 -m benchmarks.million FOLDER TEXT --part 1 --seconds 30 --device cpu --pairs 20000 \
      --options '--precision fp32 --vocab-size 3500 --d-model 32 --encoder-layers 1 --decoder-layers 1'

FOLDER gets the pairs, drawn from TEXT as those of `corpora`. Part 1 begins a run, parts 2 and 3 resume it, with the same
`--gpus`. So many seconds after its first loss the command ends: in parts 1 and 2 all its processes by SIGKILL, in
part 3 by SIGTERM. What was measured is printed, and written to `FOLDER/gpus-N-part-N.json`:

* seconds from the start of the command to its first loss, and target tokens a second from there on, states included;
* the joint: updates trained again because no state had them, and how many of their losses have other bits;
* the loss, means of ten parts of the run so far;
* MiB of all processes together: resident (what they share counts in each), anonymous, proportional; of each GPU. The
  slope is that of a line through the second half.

The exit code is 1 if a loss differs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, mean
from typing import TYPE_CHECKING, Any

from benchmarks.corpora import MIB, add_text_options, make_text, read_text
from benchmarks.facts import place_and_time
from benchmarks.processes import ending_in_order, replace_text
from benchmarks.training_command import (
    TrainingCommand,
    losses_in,
    losses_of,
    memory_of,
    processes_of,
)
from gapless.nmt.run_folder.checkpoints import newest_meta
from gapless.nmt.run_folder.logs import METRICS


if TYPE_CHECKING:
    from collections.abc import Sequence


Losses = dict[int, tuple[float, float]]


def sample(command: TrainingCommand, run: Path, *, device: str) -> dict[str, Any]:
    """Return where a run is, and the memory of its processes."""
    seconds, losses, pids = command.seconds(), losses_in(run), processes_of(command.pid)
    status = [memory_of(pid, "status") for pid in pids]
    sets = [memory_of(pid, "smaps_rollup") for pid in pids]
    found = {
        "s": round(seconds, 2),
        "update": max(losses, default=None),
        "processes": len(pids),
        "resident": round(sum(one.get("VmRSS", 0) for one in status) / MIB),
        "anonymous": round(sum(one.get("RssAnon", 0) for one in status) / MIB),
        "proportional": round(sum(one.get("Pss", 0) for one in sets) / MIB),
    }
    return found | {f"gpu_{n}": mib for n, mib in enumerate(_gpu_mib() if device != "cpu" else [])}


def _gpu_mib() -> list[int]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def train(options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Begin or resume the run, end it in the middle, and return what was seen."""
    arguments: list[object] = ["--resume", run]
    before = saved = {}
    if options.part == 1:
        arguments = _first_arguments(options, run)
    else:
        before, saved = losses_in(run), saved_losses(run)
    samples: list[dict[str, Any]] = []
    command = TrainingCommand(arguments, run, ranks=options.gpus)

    def is_over() -> bool:
        over = bool(command.seconds() > command.first + options.seconds)
        if over or not samples or command.seconds() > samples[-1]["s"] + options.every:
            samples.append(sample(command, run, device=options.device))
            print(json.dumps(samples[-1]), flush=True)
        return over

    with ending_in_order():
        try:
            if not command.until(is_over):
                raise SystemExit(f"{run} has ended by itself; begin again with more --pairs")
            ended = "SIGKILL"
            if options.part == 3:
                ended = f"SIGTERM, exit code {command.terminate()}"
        finally:
            command.kill()
    now, trained = losses_in(run), [one for one in samples if one["s"] >= command.first]
    return {
        "ended": ended,
        "first_loss_s": round(command.first, 1),
        **speed(trained, now),
        "updates": len(now),
        "updates_saved": len(saved_losses(run)),
        "joint": joint(before, saved, now) if options.part > 1 else None,
        "curve": curve(now),
        "memory": {name: growth(trained, name) for name in list(samples[0])[3:]},
        "samples": samples,
    }


def _first_arguments(options: argparse.Namespace, run: Path) -> list[object]:
    store = options.folder / "store"
    for path in (run, store):
        shutil.rmtree(path, ignore_errors=True)
    sides = (options.src, options.tgt)
    text = make_text(read_text(options), options.folder, options.pairs, sides=sides)
    return [
        *("--data", text, "--src", sides[0], "--tgt", sides[1], "--store", store),
        *("--run-dir", run, "--device", options.device, "--plan", "captured"),
        *("--precision", "bf16", "--deterministic", "--loss-interval", 10, "--average", 1),
        *("--epochs", 20, "--patience", 0, "--validate-every", "10h", "--save-every", "15s"),
        *shlex.split(options.options),
    ]


def saved_losses(run: Path) -> Losses:
    """Return the losses of the updates that the newest state of a run has."""
    meta = newest_meta(run)
    if meta is None:
        raise SystemExit(f"{run} has no saved state; begin again with more --seconds")
    return losses_of((run / METRICS).read_bytes()[: meta["metrics"]["size"]].decode())


def speed(samples: list[dict[str, Any]], losses: Losses) -> dict[str, float]:
    """Return what was trained a second between the first sample and the last."""
    first, last = samples[0], samples[-1]
    done = [tokens for n, (_, tokens) in losses.items() if first["update"] < n <= last["update"]]
    seconds = last["s"] - first["s"]
    return {
        "target_tokens_per_s": round(sum(done) / seconds),
        "updates_per_s": round(len(done) / seconds, 2),
    }


def joint(before: Losses, saved: Losses, now: Losses) -> dict[str, int]:
    """Compare the losses before a kill with those of the run that was resumed."""
    twice = [n for n in before if n not in saved and n in now]
    return {
        "updates_saved": len(saved),
        "saved_losses_that_differ": sum(now.get(n) != loss for n, loss in saved.items()),
        "updates_trained_twice": len(twice),
        "their_losses_that_differ": sum(now[n] != before[n] for n in twice),
    }


def curve(losses: Losses) -> list[dict[str, float]]:
    """Return the mean loss of each tenth of the updates."""
    updates = sorted(losses)
    bounds = [len(updates) * n // 10 for n in range(11)]
    return [
        {"to_update": updates[end - 1], "loss": round(mean(losses[n][0] for n in updates[begin:end]), 4)}
        for begin, end in pairwise(bounds)
        if end > begin
    ]  # fmt: skip


def growth(samples: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Return the means of both halves of some samples, the highest, and the slope of the second half."""
    half, values = len(samples) // 2, [one[name] for one in samples]
    slope, _ = linear_regression([one["s"] for one in samples[half:]], values[half:])
    return {
        "first_half_mib": round(mean(values[:half])),
        "second_half_mib": round(mean(values[half:])),
        "highest_mib": max(values),
        "slope_mib_a_minute": round(slope * 60, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one part; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.seconds < 4 * options.every:
        raise SystemExit(f"--seconds {options.seconds:g} is less than four times --every")
    options.folder.mkdir(parents=True, exist_ok=True)
    run = options.folder / f"gpus-{options.gpus}"
    asked = {name: getattr(options, name) for name in ("part", "gpus", "pairs")}
    found = asked | train(options, run)
    facts = place_and_time(options.device, module="benchmarks.million")
    for name, path in (("TEXT", options.text), ("FOLDER", options.folder)):
        facts["command"] = facts["command"].replace(str(path), name)
    out = run.with_name(f"{run.name}-part-{options.part}.json")
    replace_text(out, json.dumps(facts | found, indent=1) + "\n")
    for name, value in found.items():
        if name != "samples":
            print(f"{name}: {json.dumps(value)}")
    return int(any(n for name, n in (found["joint"] or {}).items() if name.endswith("differ")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.million", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="of the pairs, the runs and the results")
    add_text_options(parser)
    parser.add_argument("--part", type=int, choices=(1, 2, 3), required=True)
    parser.add_argument("--seconds", type=float, default=100, help="from the first loss on")
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples")
    parser.add_argument("--gpus", type=int, default=1, help="several start under torchrun")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--options", default="", help="more of `gapless train`, for part 1")
    return parser


if __name__ == "__main__":
    sys.exit(main())
