"""Do audits raise false alarms? The published scripts for thousands of steps, with cudnn.benchmark on.

    PYTHONPATH=src python3 -m benchmarks.audits --steps 5000 --every 32 --json audits.json
    PYTHONPATH=src python3 -m benchmarks.audits --small

Nothing changes behind a step of these scripts but what their loops change, so a difference that an audit
reports is a false alarm. Each script is a process of its own, many side by side: only what was found
counts, and the share of calls that were replayed. The times that a report names are of a busy machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.facts import place_and_time
from benchmarks.launch_bound.args import Args
from benchmarks.launch_bound.bits import Captured
from benchmarks.launch_bound.variants import IN_PLACE, NAMES, WHOLE_STEP, load
from benchmarks.processes import replace_text
from gapless.device.find import find_device
from gapless.device.numerics import seed_generators
from gapless.errors import CaptureWarning
from gapless.graphs import audit


SMALL_STEPS = 12


class Epochs:
    """Epochs until so many steps are done, or the time is over.

    Args:
        steps: in all.
        seconds: after which no epoch begins.
    """

    def __init__(self, steps, seconds):
        self._steps, self._end = steps, perf_counter() + seconds
        self.args = None

    def epochs(self):
        """Yield the numbers of the epochs."""
        number = 0
        while len(self.args.marks) < self._steps and perf_counter() < self._end:
            yield number
            number += 1


def train(name, variant, options):
    """Train a script in this process; return what its reports say.

    Args:
        name: of the script.
        variant: of it.
        options: as of the command line.
    """
    device = find_device(options.device)
    torch.backends.cudnn.benchmark = True
    if options.every is not None:
        audit.DEFAULT_EVERY = options.every
    epochs = Epochs(options.steps, options.seconds)
    module = load(name, variant)
    args = epochs.args = Args(
        device=device.torch_device,
        steps=SMALL_STEPS if options.small else module.STEPS,
        is_small=options.small,
        turns=epochs,
    )
    seed_generators(1)
    started = perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", CaptureWarning)
        with Captured() as captured:
            module.train(args)
        reports = captured.reports()
    return {
        "script": name,
        "variant": variant,
        "steps": len(args.marks),
        "seconds": round(perf_counter() - started, 1),
        "reports": reports,
        "warnings": [str(one.message) for one in told if one.category is CaptureWarning],
    }


def run_all(options):
    """Train all scripts, each in a process of its own; return what each found, as it ends."""
    pairs = list(product(options.variants, options.only))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:

        def run(pair):
            path = Path(folder) / "-".join(pair)
            command = [sys.executable, "-m", "benchmarks.audits", "--one", *pair, str(path)]
            command += ["--device", options.device, "--steps", str(options.steps)]
            command += ["--seconds", str(options.seconds)]
            command += [] if options.every is None else ["--every", str(options.every)]
            command += ["--small"] if options.small else []
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode == 0:
                return json.loads(path.read_text(encoding="utf-8"))
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            return {"script": pair[1], "variant": pair[0], "problem": last}

        for found in pool.map(run, [(variant, name) for variant, name in pairs]):
            print(line_of(found), flush=True)
            yield found


def line_of(found):
    """Return one line on a script: what was replayed and audited, and the false alarms."""
    head = f"{found['script']:14} {found['variant']:10}"
    if "problem" in found:
        return f"{head} {found['problem']}"
    reports = found["reports"]
    replays, eager, num, equal = (
        sum(report[key] for report in reports)
        for key in ("num_fast", "num_eager", "num_audits", "num_equal")
    )
    alarms = [text for report in reports for text in report["differences"]]
    share = replays / max(replays + eager, 1)
    return (
        f"{head} {found['steps']:6,} steps, {share:4.0%} of calls replayed, {num:6,} audits, "
        f"{equal:6,} equal, {len(alarms)} false alarms"
        + "".join(f"\n    {text}" for text in alarms)
    )


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5_000, help="of each script")
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no epoch begins")
    parser.add_argument("--every", type=int, help="replays from one audit to the next")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="SCRIPT")
    parser.add_argument(
        "--variants", nargs="+", choices=(WHOLE_STEP, IN_PLACE), default=(WHOLE_STEP, IN_PLACE)
    )
    parser.add_argument("--processes", type=int, default=8, help="side by side")
    parser.add_argument("--small", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.small:
        options.steps = SMALL_STEPS
    if options.one:
        variant, name, path = options.one
        replace_text(Path(path), json.dumps(train(name, variant, options)))
        return
    facts = place_and_time(options.device, module="benchmarks.audits")
    found = list(run_all(options))
    if options.json:
        replace_text(options.json, json.dumps({**facts, "scripts": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
