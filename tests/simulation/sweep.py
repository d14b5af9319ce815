"""Run every scenario under every scheduler and many seeds.

    python -m simulation.sweep --seeds 200 --jobs 2

prints one line for each schedule that failed, with the call that repeats it, and a last line with
what was run; exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback

import torch

from simulation.scenarios import SCENARIOS, run, schedules


def plan_runs(num_seeds):
    """Return all (scenario, scheduler, seed)."""
    return [
        (name, scheduler, seed)
        for name in SCENARIOS
        for scheduler, seed in schedules(name, range(num_seeds))
    ]


def try_run(planned):
    """Run one; return the number of accesses recorded, and what to print if it failed."""
    name, scheduler, seed = planned
    try:
        return run(name, scheduler=scheduler, seed=seed), None
    except Exception:
        call = f"FAILED run({name!r}, scheduler={scheduler!r}, seed={seed})"
        return 0, f"{call}\n{traceback.format_exc(limit=-3)}"


def sweep(runs, jobs):
    """Run them all in so many processes and print what failed; return the exit code."""
    torch.set_num_threads(1)
    num_accesses = num_failures = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for accesses, failure in pool.imap_unordered(try_run, runs, chunksize=8):
            num_accesses += accesses
            if failure is not None:
                num_failures += 1
                print(failure, flush=True)
    print(f"{len(runs)} runs, {num_accesses} accesses, {num_failures} failures")
    return 1 if num_failures else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    return sweep(plan_runs(options.seeds), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
