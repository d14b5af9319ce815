"""One trial: a run is killed at a random moment, resumed, and compared with one that was not."""

from __future__ import annotations

import random
import shutil
import signal
import time
from dataclasses import dataclass

from faults.injected import COUNTED
from faults.processes import LIMIT
from faults.runs import differences, is_saving, newest_step, train_options


# Kill -9 while the process starts, at any moment between saves, or while a save is under way.
MOMENTS = ("starting", "training", "saving")


@dataclass(frozen=True)
class Trial:
    """What to do, and how it went.

    Attributes:
        number: of the trial, which is the seed of its random choices.
        plan: of the loop.
        workers: of the loader.
        kills: moment and newest saved update of each kill.
        lost: updates that were done and not saved, for each kill.
        found: in what the run differs from one that was not killed; nothing is as it should be.
    """

    number: int
    plan: str
    workers: int
    kills: list[str]
    lost: list[int]
    found: list[str]

    @property
    def row(self):
        """The trial as a line of a table."""
        outcome = "; ".join(self.found) or "same bits, same history"
        kills = ", ".join(self.kills)
        lost = " ".join(map(str, self.lost))
        return f"{self.number:5}  {self.plan:16}{self.workers:7}  {kills:44}  {lost:11}  {outcome}"


HEADER = f"{'trial':5}  {'plan':16}{'workers':>7}  {'killed at':44}  {'lost':11}  outcome"


def run_trial(launcher, *, number, data, reference, folder, plan, workers, more=(), real=False):
    """Kill a run one to three times, resume it each time, and compare its end.

    The moments are counted in updates that are saved, and not in seconds, so that a slow machine
    does the same trials. `more` are further arguments of the run.
    """
    draw = random.Random(number)
    run = folder / "run"
    options = {"folder": folder, "real": real, "before": COUNTED}
    first = [*train_options(data, run, plan=plan, workers=workers), *more]
    again = ["train", "--resume", run]
    kills, lost, found = [], [], []
    for _ in range(draw.randint(1, 3)):
        has_run = (run / "config.yaml").exists()
        began = newest_step(run)
        (folder / "updates").unlink(missing_ok=True)
        process = launcher.start(*(again if has_run else first), **options)
        kills.append(kill(process, run, draw))
        ended = process.end()
        if ended.code != -signal.SIGKILL:
            kills[-1] = "too late"
            if ended.code:
                found = [f"exit code {ended.code}: {(ended.err or ended.out)[-200:]}"]
            break
        lost.append(began + updates_in(folder) - newest_step(run))
        if run.exists() and not newest_step(run):
            # Nothing is lost but what was done since the start.
            kills[-1] += " (nothing saved)"
            shutil.rmtree(run)
    if not found:
        has_run = (run / "config.yaml").exists()
        ended = launcher.run(*(again if has_run else first), **options)
        if ended.code or "Traceback" in ended.err:
            found = [f"exit code {ended.code}: {' '.join(ended.err[-300:].split())}"]
        elif "damaged" in ended.err or "Warning" in ended.err:
            found = [f"a kill damaged something: {' '.join(ended.err[-300:].split())}"]
        else:
            found = differences(run, reference)
    return Trial(number, plan, workers, kills, lost, found)


def updates_in(folder):
    """Return how many updates a process has made."""
    path = folder / "updates"
    return int((path.read_text() if path.exists() else "") or 0)


def kill(process, run, draw):
    """Kill a process at a random moment; return the moment in words."""
    moment = draw.choice(MOMENTS)
    step = newest_step(run) + draw.choice([20, 20, 40]) if moment != "starting" else 0
    end = time.monotonic() + LIMIT
    while process.is_running and newest_step(run) < step and time.monotonic() < end:
        time.sleep(0.001)
    if moment == "saving":
        while process.is_running and not is_saving(run) and time.monotonic() < end:
            pass
    else:
        time.sleep(draw.random() * (0.5 if moment == "starting" else 0.05))
    was_saving = is_saving(run)
    process.send(signal.SIGKILL)
    return f"{newest_step(run)} {'saving' if was_saving else moment}"
