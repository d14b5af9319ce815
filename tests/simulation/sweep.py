"""Run every scenario under every scheduler and many seeds.

    python -m simulation.sweep --seeds 200 --part 1/2

prints one line for each schedule that failed, with the call that repeats it, and a last line with
what was run; exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    part, num_parts = map(int, options.part.split("/"))
    torch.set_num_threads(1)
    runs = plan_runs(options.seeds)[part - 1 :: num_parts]
    num_accesses, num_failures = sweep(runs)
    print(f"{len(runs)} runs, {num_accesses} accesses, {num_failures} failures")
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
