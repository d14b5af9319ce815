"""Published scripts from their first step on: cumulative time and replays at marks, beside another tree.

    PYTHONPATH=src python3 -m benchmarks.first_minutes --seconds 60 --json first.jsonl
    PYTHONPATH=src python3 -m benchmarks.first_minutes --source OLD/src --json first.jsonl
    PYTHONPATH=src python3 -m benchmarks.first_minutes --small --device cpu --only mnist   # does it run?

Each script is a process of its own, as written, with its whole step and with its objects in place captured;
`--source` measures another tree's package too. Its clock begins behind the imports, so loaders, first kernels and
captures are in it. After `--seconds` no epoch begins. A line says, for each variant, the steps a second of the whole
beside the script as written, the share of calls that were replayed from the first mark on, and the ratio of
cumulative times at the marks. `cudnn.benchmark` is on, as most scripts of images set it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.launch_bound.args import Args
from benchmarks.launch_bound.variants import AS_WRITTEN, IN_PLACE, NAMES, WHOLE_STEP, load


MARKS = (50, 100, 200, 400, 800, 1_600, 3_200, 6_400)
SMALL_MARKS = (2, 4, 8)
SMALL_STEPS = 12


class Marked(Args):
    """Notes time and replays at some steps."""

    def begin(self, counts, marks):
        """Let the clock begin; `counts` returns replays and calls as written so far."""
        self.at, self._counts, self._marks = {}, counts, marks
        self.began = perf_counter()

    def progress(self, items):
        """Yield the items, as a progress bar does."""
        for item in super().progress(items):
            if len(self.marks) in self._marks:
                self.at[len(self.marks)] = (round(self.marks[-1] - self.began, 3), self._counts())
            yield item


class Epochs:
    """Epochs until the time is over, at least one."""

    def __init__(self, seconds):
        self._end = perf_counter() + seconds

    def epochs(self):
        """Yield the numbers of the epochs."""
        number = 0
        while not number or perf_counter() < self._end:
            yield number
            number += 1


def train(name, variant, options):
    """Train a script in this process; return its marks. Names of older trees' reports are asked for too."""
    import gapless

    found, capture = [], gapless.capture
    objects = (torch.nn.Module, torch.optim.Optimizer)

    def noted(*args, **kwargs):
        made = capture(*args, **kwargs)
        all_made = made if isinstance(made, tuple) else (made,)
        # Not what a decorator with settings is.
        found.extend(one for one in all_made if hasattr(one, "report") or isinstance(one, objects))
        return made

    def counts():
        reports = [
            one.report if hasattr(one, "report") else gapless.capture_report(one) for one in found
        ]
        replays = sum(one.num_replays + getattr(one, "num_quick", 0) for one in reports)
        return replays, sum(one.num_eager for one in reports)

    gapless.capture = noted
    torch.backends.cudnn.benchmark = True
    module = load(name, variant)
    args = Marked(
        device=torch.device(options.device),
        steps=SMALL_STEPS if options.small else module.STEPS,
        is_small=options.small,
        turns=Epochs(options.seconds),
    )
    torch.zeros(1, device=args.device)
    torch.manual_seed(1)
    args.begin(counts, SMALL_MARKS if options.small else MARKS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.train(args)
    seconds = round(perf_counter() - args.began, 2)
    return {"steps": len(args.marks), "seconds": seconds, "at": args.at, "end": counts()}


def one_run(name, variant, source, options):
    """Train a script in a process of its own; return what it printed, or its problem."""
    command = [sys.executable, "-m", "benchmarks.first_minutes", "--one", name, variant]
    command += ["--device", options.device, "--seconds", str(options.seconds)]
    command += ["--small"] if options.small else []
    folders = [source or os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    head = {"script": name, "variant": variant, "source": source}
    if done.returncode:
        return {**head, "problem": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return {**head, **json.loads(done.stdout.splitlines()[-1])}


def line_of(found, written):
    """Return a line on a variant beside the script as written."""
    head = f"{found['script']:14} {found['variant']:11} {found['source'] or 'this tree':20}"
    problem = found.get("problem") or written.get("problem")
    if problem:
        return f"{head} {problem}"
    speed = found["steps"] / found["seconds"] * written["seconds"] / written["steps"]
    first = next(iter(found["at"].values()), (0.0, (0, 0)))[1]
    replays, eager = (end - begin for end, begin in zip(found["end"], first, strict=True))
    both = [mark for mark in found["at"] if mark in written["at"]]
    ratios = " ".join(
        f"{mark}: {found['at'][mark][0] / written['at'][mark][0]:.2f}" for mark in both
    )
    share = replays / max(replays + eager, 1)
    return (
        f"{head} {found['steps']:6,} steps, {speed:5.2f}x, {share:4.0%} replayed; time at {ratios}"
    )


def main():
    """Run the command line; return 1 if a script failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no epoch begins")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="SCRIPT")
    parser.add_argument("--source", metavar="FOLDER", help="of another tree's package")
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    parser.add_argument("--json", type=Path, help="append a line for each run to this file")
    parser.add_argument("--small", action="store_true", help="on a CPU: does it all run?")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(*options.one, options)))
        return 0
    sources = [None, options.source] if options.source else [None]
    runs = [
        (name, variant, source)
        for name in options.only
        for variant in (AS_WRITTEN, WHOLE_STEP, IN_PLACE)
        for source in (sources if variant != AS_WRITTEN else [None])
    ]
    written, has_failed = {}, False
    with ThreadPoolExecutor(options.processes) as pool:
        for found in pool.map(lambda run: one_run(*run, options), runs):
            has_failed |= "problem" in found
            if found["variant"] == AS_WRITTEN:
                written[found["script"]] = found
            print(line_of(found, written[found["script"]]), flush=True)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    return int(has_failed)


if __name__ == "__main__":
    raise SystemExit(main())
