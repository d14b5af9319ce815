"""Trainings whose batches change their shape, with and without gapless: cumulative time at each step.

    PYTHONPATH=src python3 -m benchmarks.changing_shapes --only trainer --seconds 550 --json shapes.jsonl
    PYTHONPATH=src python3 -m benchmarks.changing_shapes --table shapes.jsonl --plot shapes.svg
    PYTHONPATH=src python3 -m benchmarks.changing_shapes --device cpu --tiny --runs 1 --steps 12   # does it run?

Each run is a process of its own; a training as written and those with gapless take turns. Seconds count
from the built batches on: the import of gapless, models, loaders and all captures are in them. The device
is waited for at about sixty marks alone. The table says what gapless took beyond a tenth more than as
written and five seconds, at the worst of these marks, beside the spread of the runs as written; the ratio
of both times at the end, and of the last quarter of the steps; what the printed account says; and whether
losses have the same bits. It compares the same runs at each of `--steps`: the largest is trained.

After `--seconds` no run begins, and those that train end at their next mark. Each prints a line of JSON with
ten of its marks; the file has them all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from benchmarks.changing_shapes.data import LENGTHS
from benchmarks.changing_shapes.loops import AS_WRITTEN, LOOPS
from benchmarks.changing_shapes.summary import lines_of, plot, short


# Packed rows need a mask by sentence, which torch's own encoder takes.
_PACKED = ("encoder",)

# A process that has to end waits for its next mark.
_PATIENCE_S = 60.0


def rounds_of(options: argparse.Namespace) -> list[list[tuple[str, str, str]]]:
    """Return, for each turn of each training, its runs one after another."""
    turns = []
    for number in range(options.runs):
        for loop in options.only:
            for lengths in options.lengths:
                if lengths == "packed" and loop not in _PACKED:
                    continue
                variants = (
                    AS_WRITTEN,
                    *(v for v in LOOPS[loop].variants if v in options.variants),
                )
                order = variants if number % 2 == 0 else variants[::-1]
                turns.append([(loop, lengths, variant) for variant in order])
    return turns


def one_run(name: tuple[str, str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Train in a process of its own; return what it printed, or its problem."""
    loop, lengths, variant = name
    missing = [one for one in LOOPS[loop].modules if find_spec(one.partition(".")[0]) is None]
    head = {"loop": loop, "lengths": lengths, "variant": variant}
    if missing:
        return {**head, "problem": f"{missing[0]} is not installed"}
    if time.time() > options.end_s:
        return {**head, "problem": "no time is left"}
    command = [sys.executable, "-m", "benchmarks.changing_shapes.worker", "--loop", loop]
    command += ["--lengths", lengths, "--variant", variant, "--device", options.device]
    command += ["--steps", str(max(options.steps)), "--end-s", str(options.end_s)]
    command += ["--tiny"] if options.tiny else []
    command += ["--deterministic"] if options.deterministic else []
    most_s = options.end_s - time.time() + _PATIENCE_S
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=most_s)
    except subprocess.TimeoutExpired:
        return {**head, "problem": "it did not end in time"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    return {**head, "problem": (done.stderr.strip().splitlines() or ["no word"])[-1]}


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run everything that there is time for; print each run as it ends."""
    found: list[dict[str, Any]] = []
    lock = Lock()

    def turn(names: list[tuple[str, str, str]]) -> None:
        for name in names:
            run = one_run(name, options)
            with lock:
                found.append(run)
                print(json.dumps(short(run)), flush=True)
                if options.json is not None:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(run) + "\n")

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(turn, rounds_of(options)))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run trainings, or read files of runs, and print the table; return 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=["padded"])
    parser.add_argument(
        "--variants", nargs="+", choices=("in-place", "step"), default=["in-place", "step"]
    )
    parser.add_argument("--steps", nargs="+", type=int, default=[200, 2_000])
    parser.add_argument("--runs", type=int, default=5, help="of each training")
    parser.add_argument("--processes", type=int, default=1, help="turns side by side")
    parser.add_argument("--seconds", type=float, default=550.0, help="after which no run begins")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda", "simulated"),
        default="cuda" if torch.cuda.is_available() else "cpu",
    )
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms")
    parser.add_argument("--json", type=Path, help="append a line for each run to this file")
    parser.add_argument("--table", nargs="+", type=Path, help="read these files, run nothing")
    parser.add_argument("--plot", type=Path, help="an SVG")
    options = parser.parse_args(arguments)
    options.end_s = time.time() + options.seconds
    if options.table:
        texts = [line for path in options.table for line in path.read_text().splitlines()]
        runs = [json.loads(text) for text in texts]
    else:
        runs = run_all(options)
    print("\n".join(lines_of(runs, options.steps)))
    if options.plot is not None:
        plot(runs, options.plot)
    return int(any("problem" in run for run in runs))


if __name__ == "__main__":
    raise SystemExit(main())
