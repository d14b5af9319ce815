"""Let faults happen to one long run at random, and see that nothing grows, stays or is lost.

    cd tests && PYTHONPATH=.:../src python -m faults.soak --minutes 30 --seed 0

A tiny model trains under `--deterministic --save-every 20`. For half of the time faults happen to
it at random moments: some it survives, others end the process, and the run is resumed. Then a run
that nothing interrupts makes the same number of updates. Every process has to be gone within 30 s
of what ended it, with all that it started; the memory, threads and descriptors of each that trains
long enough have to stay flat (`faults.resources` says how flat); and both runs have to end with the
same weights and history. Prints a table and a verdict; exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.processes import LIMIT, LIMIT_OF_FAULTS, Launcher
from faults.resources import Thirds, watch
from faults.runs import UPDATES, differences, newest_step, train_options, write_data
from faults.small_disk import SmallDisk


SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}

# What ends a process, and its exit code then.
ENDINGS = {"kill -9": -signal.SIGKILL, "a worker killed": 1, **SIGNALS}

# What a process survives. The second needs a disk that may be small.
SURVIVED = ("SIGUSR1", "full disk")

# So many epochs that the last process has to be told where to stop.
ENDLESS = 1_000_000

# An epoch is longer than that of the tests, so that less of the time goes into validation.
PAIRS = 8 * 5 * UPDATES


@dataclass(frozen=True)
class Life:
    """One process of a run, from its start to its end.

    Attributes:
        workers: of its loader.
        faults: that happened to it, in order.
        updates: that it saved.
        seconds: until it ended, or was made to end.
        gone: seconds after that until all its processes were gone.
        code: its exit code; None if it had to be killed.
        thirds: what it held while it trained.
        wrong: in what it was not as it should be.
    """

    workers: int
    faults: list[str]
    updates: int
    seconds: float
    gone: float
    code: int | None
    thirds: Thirds
    wrong: list[str]

    @property
    def row(self):
        """The life as a line of a table."""
        code = "-" if self.code is None else self.code
        faults = ", ".join(self.faults) or "none"
        return (
            f"{self.workers:7}{self.seconds:9.1f}{self.updates:9}{code:>6}{self.gone:7.1f}  "
            f"{self.thirds!s:48}{'; '.join([faults, *self.wrong])}"
        )


HEADER = (
    f"{'workers':>7}{'seconds':>9}{'updates':>9}{'exit':>6}{'gone':>7}  "
    f"{'memory, threads, descriptors':48}faults, and what went wrong"
)


class Soak:
    """One long run that faults happen to, and one that nothing happens to.

    Args:
        launcher: of the processes.
        folder: an empty one, for the data and both runs.
        seed: of what happens, and when.
        kilobytes: of the disk that the run is on, where mounts are allowed.
        real: whether each process starts Python anew.
    """

    def __init__(self, launcher, folder, *, seed=0, kilobytes=64_000, real=False):
        self._launcher = launcher
        self._folder = folder
        self._draw = random.Random(seed)
        self._real = real
        self._data = write_data(folder / "data", train=PAIRS)
        self.disk = small_disk(folder / "disk", kilobytes)
        self._run = (self.disk.path if self.disk else folder) / "run"
        self._seen = (self.disk.seen if self.disk else folder) / "run"
        self._reference = folder / "reference"

    def lives(self, *, seconds, longest, count=None):
        """Yield each life of the run, until the time is over, so many ended, or one went wrong.

        Every ending happens once before any happens again. No life is asked to train for more
        than `longest` seconds.
        """
        end = time.monotonic() + seconds
        endings = []
        lived = 0
        while lived != count and (left := end - time.monotonic()) > 0:
            endings = endings or self._draw.sample(list(ENDINGS), len(ENDINGS))
            share = self._draw.choice([1 / 16, 1 / 4, 1])
            life = self._faulty(endings.pop(), seconds=min(left, share * longest))
            yield life
            if life.wrong:
                return
            lived += 1

    def finish(self):
        """Resume the run, to its end a few updates later; return that life."""
        steps = newest_step(self._seen) + 20
        return self._live(
            ["train", "--resume", self._run, "--max-steps", steps],
            seen=self._seen,
            happens=lambda process, _, held: held.extend(watch(process, LIMIT)),
        )

    def train_reference(self, *, limit):
        """Make as many updates in one process that nothing interrupts; return its life."""
        steps = newest_step(self._seen)
        return self._live(
            [
                *train_options(self._data, self._reference, epochs=ENDLESS),
                *("--max-steps", steps),
            ],
            seen=self._reference,
            happens=lambda process, _, held: held.extend(watch(process, limit)),
        )

    def differences(self):
        """Return in what the run ended differently from the one that nothing interrupted."""
        return differences(self._seen, self._reference)

    def close(self, *, keep=False):
        """Give the disk back; `keep` leaves what was on it in the folder."""
        if self.disk:
            if keep and self._seen.exists():
                shutil.copytree(self._seen, self._folder / "run")
            self.disk.close()

    def _faulty(self, ending, *, seconds):
        """Start the run or resume it, let faults happen, and return that life."""
        draw = self._draw
        workers = 2 if ending == "a worker killed" else draw.choice([0, 2])
        possible = SURVIVED if self.disk else SURVIVED[:1]
        survived = draw.choices(possible, k=draw.randint(0, 1 + int(seconds / 5)))
        moments = sorted(draw.uniform(0, seconds) for _ in survived)
        began_at = newest_step(self._seen)
        # The very first process has to save something that a resume finds.
        early = ending == "kill -9" and began_at and draw.random() < 0.5

        def happens(process, faults, held):
            if early:
                time.sleep(0.5 * draw.random())
                process.send(signal.SIGKILL)
                faults.append("kill -9 at the start")
                return
            process.until(
                lambda: newest_step(self._seen) > began_at, what="it trained and saved an update"
            )
            began = time.monotonic()
            for fault, moment in zip(survived, moments, strict=True):
                held.extend(watch(process, began + moment - time.monotonic()))
                faults.append(fault)
                self._let_survive(fault, process)
            held.extend(watch(process, began + seconds - time.monotonic()))
            if process.is_running:
                faults.append(ending)
                self._let_end(ending, process)

        if began_at:
            arguments = ["train", "--resume", self._run, "--workers", workers]
        else:
            arguments = train_options(self._data, self._run, epochs=ENDLESS, workers=workers)
        return self._live(
            arguments, seen=self._seen, happens=happens, code=ENDINGS[ending], workers=workers
        )

    def _let_survive(self, fault, process):
        if fault == "SIGUSR1":
            process.send(signal.SIGUSR1)
            return
        self.disk.fill()
        time.sleep(self._draw.uniform(0.1, 2))
        self.disk.free()

    def _let_end(self, ending, process):
        if ending == "kill -9":
            process.send(signal.SIGKILL)
        elif ending == "a worker killed":
            process.until(process.children, what="it had workers")
            os.kill(process.children()[0], signal.SIGKILL)
        else:
            # To the process alone, or to its workers too, as from a terminal.
            send = self._draw.choice([process.send, process.send_all])
            send(signal.Signals[ending])

    def _live(self, arguments, *, seen, happens, code=0, workers=0):
        """Start a process, let things happen to it, and see how it ends and who is left."""
        began_at = newest_step(seen)
        enter = self.disk.enter if self.disk else ""
        process = self._launcher.start(
            *arguments, folder=self._folder, before=enter, real=self._real
        )
        began = time.monotonic()
        faults, held, wrong, ended = [], [], [], None
        with noting_failures(wrong):
            happens(process, faults, held)
        made_to_end = time.monotonic()
        with noting_failures(wrong):
            ended = process.end(limit=LIMIT_OF_FAULTS)
        gone = time.monotonic() - made_to_end
        thirds = Thirds(held)
        wrong += thirds.growth()
        if ended is not None:
            if ended.code != code:
                said = " ".join((ended.err or ended.out)[-500:].split())
                wrong.append(f"exit code {ended.code}, not {code}: {said}")
            wrong += [word for word in ("Traceback", "damaged") if word in ended.out + ended.err]
        return Life(
            workers=workers,
            faults=faults,
            updates=newest_step(seen) - began_at,
            seconds=made_to_end - began,
            gone=gone,
            code=None if ended is None else ended.code,
            thirds=thirds,
            wrong=wrong,
        )


@contextlib.contextmanager
def noting_failures(wrong):
    """Write down what a helper of the tests says failed, instead of ending there."""
    try:
        yield
    except pytest.fail.Exception as error:
        wrong.append(" ".join(str(error).split()))


def small_disk(folder, kilobytes):
    """Return a small disk in a new folder; None where no mounts are allowed."""
    folder.mkdir()
    try:
        return SmallDisk(folder, kilobytes=kilobytes)
    except pytest.skip.Exception:
        return None


def run_soak(soak, *, seconds, longest, count=None, report=print):
    """Let faults happen, finish both runs, and report each life; return what went wrong."""
    report(HEADER)
    lives = []

    def note(life):
        lives.append(life)
        report(life.row)
        return life.wrong

    for life in soak.lives(seconds=seconds, longest=longest, count=count):
        if note(life):
            return life.wrong
    wrong = note(soak.finish()) or note(soak.train_reference(limit=4 * seconds + LIMIT))
    if wrong:
        return wrong
    judged = sum(life.thirds.is_judged for life in lives)
    faults = sum(len(life.faults) for life in lives)
    report(
        f"{faults} faults in {len(lives) - 1} processes of one run; {lives[-1].updates} updates; "
        f"all gone at most {max(life.gone for life in lives):.1f} s after an end; memory, threads "
        f"and descriptors are flat in the {judged} processes that trained long enough to judge"
    )
    return soak.differences()


def main():
    options = parse()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    launcher = Launcher()
    # The record of a run grows by one to a few megabytes a minute.
    soak = Soak(
        launcher,
        folder,
        seed=options.seed,
        kilobytes=32_000 + int(8_000 * options.minutes),
        real=options.real,
    )
    if soak.disk is None:
        print("this machine allows no mounts: no disk will be full")
    wrong = ["it was interrupted"]
    try:
        wrong = run_soak(
            soak,
            seconds=30 * options.minutes,
            longest=options.longest,
            report=lambda line: print(line, flush=True),
        )
    finally:
        launcher.close()
        soak.close(keep=bool(wrong))
    if wrong:
        print(f"WRONG: {'; '.join(wrong)}\nthe runs are kept in {folder}")
        return 1
    print("as it should be: same weights and history as a run that nothing interrupted")
    shutil.rmtree(folder)
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="in all, about")
    parser.add_argument("--seed", type=int, default=0, help="of what happens, and when")
    parser.add_argument("--longest", type=float, default=60, help="seconds of a life with faults")
    parser.add_argument("--real", action="store_true", help="start Python anew for each process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
