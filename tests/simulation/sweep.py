"""Run every scenario under every scheduler and many seeds.

    python -m simulation.sweep --seeds 200 --jobs 2

prints one line for each schedule that failed, with the call that repeats it, and a last line with
what was run; exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import traceback

import torch

from simulation.scenarios import SCENARIOS, run, schedules


def plan_runs(num_seeds):
    """Return all (scenario, scheduler, seed), spread so that every part has some of each."""
    return [
        (name, scheduler, seed)
        for name in SCENARIOS
        for scheduler, seed in schedules(name, range(num_seeds))
    ]


def sweep(runs):
    """Run them all; return the number of accesses recorded and the number of failures."""
    num_accesses = num_failures = 0
    for name, scheduler, seed in runs:
        try:
            num_accesses += run(name, scheduler=scheduler, seed=seed)
        except Exception:
            num_failures += 1
            print(f"FAILED run({name!r}, scheduler={scheduler!r}, seed={seed})")
            print(traceback.format_exc(limit=-3), flush=True)
    return num_accesses, num_failures


def sweep_in_parts(num_seeds, jobs):
    """Run parts of the sweep in processes of their own, and print what they print."""
    command = [sys.executable, "-m", "simulation.sweep", "--seeds", str(num_seeds)]
    parts = [
        subprocess.Popen([*command, "--part", f"{part}/{jobs}"], stdout=subprocess.PIPE, text=True)
        for part in range(1, jobs + 1)
    ]
    counts = []
    for part in parts:
        *lines, last = part.communicate()[0].splitlines()
        print("\n".join(lines), end="\n" if lines else "")
        counts.append([int(word) for word in last.split() if word.isdecimal()])
    return [sum(column) for column in zip(*counts, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    if options.jobs > 1:
        num_runs, num_accesses, num_failures = sweep_in_parts(options.seeds, options.jobs)
    else:
        part, num_parts = map(int, options.part.split("/"))
        torch.set_num_threads(1)
        runs = plan_runs(options.seeds)[part - 1 :: num_parts]
        num_runs = len(runs)
        num_accesses, num_failures = sweep(runs)
    print(f"{num_runs} runs, {num_accesses} accesses, {num_failures} failures")
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
