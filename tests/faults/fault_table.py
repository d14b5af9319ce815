"""Let every fault happen to a real run, and print its message, exit code and seconds.

    cd tests && PYTHONPATH=.:../src python -m faults.fault_table

The seconds are those from the fault until the process and all that it started are gone; a silent
worker is found after `--loader-timeout 2`. Exits with 1 if one took more than 30, ended in a
traceback, or left a run that a resume does not bring to the end of one without faults.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faults.injected import SLOW, failing_worker
from faults.processes import LIMIT_OF_FAULTS, Launcher
from faults.runs import differences, newest_step, train_options, write_data
from faults.small_disk import SmallDisk


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Scene:
    """A run that trains with two workers, and what a fault needs to know of it."""

    process: object
    run: Path
    disk: SmallDisk | None


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        name: of the row.
        inject: lets it happen to a run that has saved; None if it happens by itself.
        more: arguments of the run.
        before: code that runs in the process before gapless.
        mend: makes it possible to go on; None if that needs nothing.
        on_small_disk: whether the run folder is on a small disk.
        has_resume: whether a resume is to end as a run without faults does.
    """

    name: str
    inject: Callable[[Scene], None] | None = None
    more: tuple[object, ...] = ()
    before: str = SLOW
    mend: Callable[[Scene], None] | None = None
    on_small_disk: bool = False
    has_resume: bool = True


def to_worker(number):
    return lambda scene: os.kill(scene.process.children()[0], number)


def to_run(number):
    return lambda scene: scene.process.send(number)


EXPLODING = ("--lr", "1e18", "--clip-norm", "0", "--warmup", "1", "--schedule", "constant")
LITTLE_MEMORY = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))"

FAULTS = [
    Fault("SIGTERM", to_run(signal.SIGTERM)),
    Fault("SIGINT", to_run(signal.SIGINT)),
    Fault("SIGHUP", to_run(signal.SIGHUP)),
    Fault("a worker is killed", to_worker(signal.SIGKILL)),
    Fault("a worker is silent", to_worker(signal.SIGSTOP), more=("--loader-timeout", 2)),
    Fault(
        "a worker raises",
        before=SLOW + failing_worker("OSError(5, 'Input/output error', 'train.en')", after=20),
    ),
    Fault(
        "the disk is full",
        lambda scene: scene.disk.fill(),
        mend=lambda scene: scene.disk.free(),
        on_small_disk=True,
    ),
    Fault(
        "the disk is read-only",
        lambda scene: scene.disk.make_read_only(),
        on_small_disk=True,
        has_resume=False,
    ),
    Fault("the run folder is gone", lambda scene: shutil.rmtree(scene.run), has_resume=False),
    Fault("a loss is not finite", more=EXPLODING, before="", has_resume=False),
    Fault(
        "no memory for the model",
        more=("--d-model", 60_000, "--ffn", 60_000),
        before=LITTLE_MEMORY,
        has_resume=False,
    ),
]


def try_fault(fault, launcher, folder, data, reference):
    """Let a fault happen; return how the run ended, the seconds, and what is wrong."""
    folder.mkdir()
    disk = None
    if fault.on_small_disk:
        (folder / "disk").mkdir()
        disk = SmallDisk(folder / "disk", kilobytes=4000)
    enter = disk.enter if disk else ""
    run = (disk.path if disk else folder) / "run"
    seen = (disk.seen if disk else folder) / "run"
    options = [*train_options(data, run, workers=2), *fault.more]
    process = launcher.start(*options, folder=folder, before=enter + fault.before)
    scene = Scene(process, seen, disk)
    if fault.inject:
        process.until(lambda: newest_step(seen) >= 20, what="an update was saved")
        fault.inject(scene)
    began = time.monotonic()
    ended = process.end()
    seconds = time.monotonic() - began
    wrong = [] if seconds <= LIMIT_OF_FAULTS or not fault.inject else [f"took {seconds:.0f} s"]
    wrong += ["a traceback"] if "Traceback" in ended.out + ended.err else []
    if fault.mend:
        fault.mend(scene)
    if fault.has_resume:
        resumed = launcher.run("train", "--resume", run, folder=folder, before=enter)
        wrong += [f"exit code {resumed.code} of the resume"] if resumed.code else []
        wrong += differences(seen, reference)
    if disk:
        disk.close()
    return ended, seconds, wrong


def main():
    folder = Path(tempfile.mkdtemp(prefix="fault-table-"))
    data = write_data(folder / "data")
    launcher = Launcher()
    launcher.run(*train_options(data, folder / "reference"), folder=folder).check_done()
    failed = 0
    print(f"{'fault':26}{'exit':>5}{'seconds':>9}  {'resumed':10}message")
    for number, fault in enumerate(FAULTS):
        ended, seconds, wrong = try_fault(
            fault, launcher, folder / str(number), data, folder / "reference"
        )
        last = (ended.errors or [line.strip() for line in ended.out.splitlines()[-2:]] or [""])[0]
        resumed = "; ".join(wrong) or ("same bits" if fault.has_resume else "-")
        message = last.replace(f"{folder}/{number}/", "")
        print(f"{fault.name:26}{ended.code:5}{seconds:9.1f}  {resumed:10}{message}", flush=True)
        failed += bool(wrong)
    launcher.close()
    shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
