"""Kill runs with `kill -9` at random moments, resume them, and compare every bit.

    cd tests && PYTHONPATH=.:../src python -m faults.kill_trials --trials 100 --workers 0,2

Each trial trains a tiny model with `--deterministic --save-every 20`, kills it one to
three times, while it starts, trains or saves, and resumes it. Its final weights, its newest state,
its history and its summary have to be those of a run that nobody killed. Prints a table with the
updates that each kill lost; exits with 1 if one trial differs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults.processes import Launcher
from faults.runs import train_options, write_data
from faults.trials import HEADER, run_trial


PLANS = "gapless,blocking,interval,four-stream,captured,auto"


def main():
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="kill-trials-"))
    data = write_data(folder / "data")
    plans, workers = options.plans.split(","), [int(n) for n in options.workers.split(",")]
    launchers = [Launcher() for _ in range(options.jobs)]
    more = ["--device", options.device]
    if options.device != "cpu":
        # There plans have the same bits if their batches have the same shapes and nothing compiles.
        more += ["--fixed-shapes", "--no-compile"]
    reference = [*train_options(data, folder / "reference"), *more]
    launchers[0].run(*reference, folder=folder).check_done()

    def share(job):
        """Run the trials of one job, each with the next plan and number of workers."""
        for number in range(options.first + job, options.first + options.trials, options.jobs):
            own = folder / str(number)
            own.mkdir()
            trial = run_trial(
                launchers[job],
                number=number,
                data=data,
                reference=folder / "reference",
                folder=own,
                plan=plans[number % len(plans)],
                workers=workers[number // len(plans) % len(workers)],
                more=more,
                real=options.real,
            )
            print(trial.row, flush=True)
            if not trial.found:
                shutil.rmtree(own)
            yield trial

    print(HEADER)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = pool.map(lambda job: list(share(job)), range(options.jobs))
        trials = [trial for job in jobs for trial in job]
    for launcher in launchers:
        launcher.close()
    different = [trial for trial in trials if trial.found]
    kills = [kill for trial in trials for kill in trial.kills]
    print(
        f"{len(trials) - len(different)} of {len(trials)} trials ended with the same bits and "
        f"history, after {len(kills)} kills, {sum('saving' in kill for kill in kills)} while saving"
    )
    lost = [updates for trial in trials for updates in trial.lost]
    print(f"updates lost by a kill: {sum(lost) / len(lost):.1f} on average, {max(lost)} at most")
    if different:
        print(f"what differs is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--plans", default=PLANS)
    parser.add_argument("--workers", default="0,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    parser.add_argument("--real", action="store_true", help="start Python anew for each process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
