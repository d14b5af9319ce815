"""Faults that happen to a run while it trains, as data; what they do, and how the run has to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from faults.injected import JUMPING_CLOCK, SLOW, failing_worker
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import UPDATES, differences, newest_step, train_options
from faults.small_disk import SmallDisk


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from faults.processes import Ended, Running


NO_ROOM = "No space left on device"

STOPPED = {143, 130, 129}


@dataclass(frozen=True)
class Scene:
    """A run that trains, and what a fault needs to know of it.

    Attributes:
        process: that trains.
        run: its folder, as it is seen from here.
        data: a copy for this run alone.
        disk: a small one that the run is on, if it is.
    """

    process: Running
    run: Path
    data: Path
    disk: SmallDisk | None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a run, and how it has to end.

    Attributes:
        name: for a person.
        inject: lets it happen to a run that has saved; None if it happens by itself.
        more: arguments of the run.
        workers: of its loader.
        before: code that runs in the process before gapless.
        ignored: names of signals that the process ignores from its start.
        is_on_small_disk: whether the run folder is on a disk of 4 MB.
        code: with which the process ends. A run of code 0 ends like one without faults.
        says: parts of its only line of error; `{run}` and `{newest}` are the folder and newest state.
        mend: makes it possible to go on; None if that needs nothing.
        is_resumed: whether a resume ends like a run without faults.
        is_quick: whether `make test` runs it.
    """

    name: str
    inject: Callable[[Scene], object] | None = None
    more: tuple[object, ...] = ()
    workers: int = 2
    before: str = SLOW
    ignored: tuple[str, ...] = ()
    is_on_small_disk: bool = False
    code: int
    says: tuple[str, ...] = ()
    mend: Callable[[Scene], object] | None = None
    is_resumed: bool = True
    is_quick: bool = False


def to_run(number: int) -> Callable[[Scene], object]:
    return lambda scene: scene.process.send(number)


def to_all(number: int) -> Callable[[Scene], object]:
    """As a terminal does."""
    return lambda scene: scene.process.send_all(number)


def to_workers(number: int, *, count: int = 1) -> Callable[[Scene], object]:
    def send(scene: Scene) -> None:
        workers = scene.process.children()
        assert len(workers) == 2
        for worker in workers[:count]:
            os.kill(worker, number)

    return send


def stop_workers_and_run(scene: Scene) -> None:
    to_workers(signal.SIGSTOP, count=2)(scene)
    scene.process.send(signal.SIGTERM)


def ask_again_and_again(scene: Scene) -> None:
    while newest_step(scene.run) < 2 * UPDATES and scene.process.is_running:
        scene.process.send(signal.SIGUSR1)


def fill_for_a_while(scene: Scene) -> None:
    scene.disk.fill()
    scene.process.until(lambda: NO_ROOM in scene.process.err, what="the full disk was noticed")
    scene.disk.free()


def at_once(do: Callable[[Path], object]) -> Callable[[Scene], object]:
    """Do something to the run folder, that a process writes to meanwhile."""

    def insist(scene: Scene) -> None:
        for _ in range(20):
            try:
                do(scene.run)
            except OSError:
                continue
            return
        pytest.fail(f"{scene.run} resists")

    return insist


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


def forbid_changes(scene: Scene) -> None:
    if subprocess.run(["chattr", "+i", scene.run / "checkpoints"], capture_output=True).returncode:
        pytest.skip("chattr may not make a folder unchangeable here")


def allow_changes(scene: Scene) -> None:
    subprocess.run(["chattr", "-i", scene.run / "checkpoints"], capture_output=True)


def free(scene: Scene) -> None:
    scene.disk.free()


ON_DISK = {"is_on_small_disk": True, "mend": free}
FULL = {**ON_DISK, "code": 2, "says": (NO_ROOM, "{newest}", "gapless train --resume {run}")}
LOST = {"code": 2, "says": ("{run}",), "is_resumed": False, "more": ("--epochs", 50)}
EXPLODING = ("--lr", "1e18", "--clip-norm", "0", "--warmup", "1", "--schedule", "constant")
LITTLE_MEMORY = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))"


def worker_raises(error: str, *says: str, is_quick: bool = False) -> Fault:
    return Fault(
        name=f"a worker raises {error}",
        before=SLOW + failing_worker(error, after=20),
        code=1,
        says=says,
        is_quick=is_quick,
    )


FAULTS = [
    Fault(name="SIGTERM", inject=to_run(signal.SIGTERM), workers=0, code=143, is_quick=True),
    Fault(name="SIGINT", inject=to_run(signal.SIGINT), code=130),
    Fault(name="SIGINT to all", inject=to_all(signal.SIGINT), code=130),
    Fault(name="SIGHUP", inject=to_run(signal.SIGHUP), workers=0, code=129),
    Fault(
        name="SIGHUP under nohup",
        inject=to_run(signal.SIGHUP),
        workers=0,
        ignored=("SIGHUP",),
        code=0,
    ),
    Fault(name="SIGTERM, and silent workers", inject=stop_workers_and_run, code=143),
    Fault(name="SIGUSR1 again and again", inject=ask_again_and_again, code=0),
    Fault(name="SIGKILL", inject=to_run(signal.SIGKILL), code=-signal.SIGKILL),
    Fault(
        name="a worker is killed",
        inject=to_workers(signal.SIGKILL),
        code=1,
        says=("worker", "SIGKILL"),
        is_quick=True,
    ),
    Fault(
        name="a worker breaks",
        inject=to_workers(signal.SIGSEGV),
        code=1,
        says=("worker", "SIGSEGV"),
    ),
    Fault(
        name="all workers are killed",
        inject=to_workers(signal.SIGKILL, count=2),
        code=1,
        says=("worker",),
    ),
    Fault(
        name="a worker is silent",
        inject=to_workers(signal.SIGSTOP),
        more=("--loader-timeout", 2),
        code=1,
        says=("worker", "--loader-timeout"),
    ),
    worker_raises("OSError(5, 'Input/output error', 'train.en')", "Input/output error"),
    worker_raises("MemoryError('no memory for a batch')", "no memory for a batch"),
    worker_raises("KeyError('two arguments', 3)", "two arguments"),
    worker_raises("StopIteration()"),
    worker_raises("SystemExit(3)"),
    Fault(
        name="the disk is full for a while",
        inject=fill_for_a_while,
        workers=0,
        code=0,
        is_on_small_disk=True,
    ),
    Fault(name="the disk is full", inject=lambda scene: scene.disk.fill(), workers=0, **FULL),
    Fault(
        name="the disk has room for a small file",
        inject=lambda scene: scene.disk.fill(leave=8192),
        **FULL,
    ),
    Fault(
        name="the disk has room for half a state",
        inject=lambda scene: scene.disk.fill(leave=60_000),
        **FULL,
    ),
    Fault(
        name="the disk is read-only",
        inject=lambda scene: scene.disk.make_read_only(),
        is_on_small_disk=True,
        code=2,
        says=("Read-only file system",),
        is_resumed=False,
    ),
    Fault(name="the run folder is gone", inject=at_once(shutil.rmtree), **LOST),
    Fault(name="the run folder has moved", inject=at_once(rename), **LOST),
    Fault(name="the run folder is a file", inject=at_once(replace_by_file), **LOST),
    Fault(
        name="nothing can be made in the folder of checkpoints",
        inject=forbid_changes,
        code=2,
        says=("{run}", "Operation not permitted"),
        mend=allow_changes,
    ),
    Fault(
        name="the data is gone, which was read",
        inject=lambda scene: shutil.rmtree(scene.data),
        code=0,
    ),
    Fault(name="the clock jumps by days", before=JUMPING_CLOCK, code=0),
    Fault(
        name="the clock jumps, and saves go by it",
        more=("--save-every", "1s"),
        before=JUMPING_CLOCK + SLOW,
        workers=0,
        code=0,
    ),
    Fault(
        name="a loss is not finite",
        more=EXPLODING,
        workers=0,
        before="",
        code=1,
        says=("update",),
        is_resumed=False,
    ),
    Fault(
        name="no memory for the model",
        more=("--d-model", 60_000, "--ffn", 60_000),
        workers=0,
        before=LITTLE_MEMORY,
        code=1,
        says=("memory",),
        is_resumed=False,
    ),
]


def try_fault(fault, launcher, folder, *, data, reference):
    """Let a fault happen to a run of its own.

    Args:
        fault: to be tried.
        launcher: of processes.
        folder: an empty one.
        data: to train on.
        reference: a run that nothing happened to.

    Returns:
        How the run ended; seconds until it and all that it started were gone; and what is wrong:
        nothing, if all is as it has to be.
    """
    disk = None
    if fault.is_on_small_disk:
        (folder / "disk").mkdir()
        disk = SmallDisk(folder / "disk", kilobytes=4000)
    try:
        return _try(fault, launcher, folder, disk, data=data, reference=reference)
    finally:
        if disk:
            disk.close()


def _try(fault, launcher, folder, disk, *, data, reference):
    own = shutil.copytree(data, folder / "data")
    enter = disk.enter if disk else ""
    run, seen = (disk.path / "run", disk.seen / "run") if disk else (folder / "run",) * 2
    process = launcher.start(
        *train_options(own, run, workers=fault.workers),
        *fault.more,
        folder=folder,
        before=enter + fault.before,
        ignored=fault.ignored,
    )
    scene = Scene(process, seen, own, disk)
    try:
        if fault.inject:
            process.until(lambda: newest_step(seen) >= 20, what="an update was saved")
            fault.inject(scene)
        began = time.monotonic()
        ended = process.end(limit=2 * LIMIT_OF_FAULTS)
        seconds = time.monotonic() - began
        wrong = _wrong_with_end(fault, ended, run=run, seen=seen)
        if disk and launcher.run("checkpoint", "verify", run, folder=folder, before=enter).code:
            wrong.append("a checkpoint is torn")
    finally:
        if fault.mend:
            fault.mend(scene)
    if fault.code and fault.is_resumed:
        resumed = launcher.run("train", "--resume", run, folder=folder, before=enter)
        wrong += [f"the resume: {resumed.err}"] if resumed.code else []
    if fault.is_resumed:
        wrong += differences(seen, reference)
    return ended, seconds, wrong


def _wrong_with_end(fault: Fault, ended: Ended, *, run: Path, seen: Path) -> list[str]:
    """Return what is not as it should be in what a process said and left."""
    text = " ".join((ended.out + ended.err).split())
    says = fault.says
    if fault.code in STOPPED:
        says = ("{count} updates", "gapless train --resume {run}")
    names = {"run": run, "count": newest_step(seen), "newest": f"step-{newest_step(seen):09d}"}
    parts = [part.format(**names) for part in says]
    wrong = [f"it does not say {part!r}: {text[-1000:]}" for part in parts if part not in text]
    if ended.code != fault.code:
        wrong.append(f"exit code {ended.code}: {text[-1000:]}")
    if "Traceback" in text:
        wrong.append(f"a traceback: {text[-1000:]}")
    if len(ended.errors) != (fault.code in (1, 2)):
        wrong.append(f"{len(ended.errors)} lines of error")
    if text.count(NO_ROOM) > 3:
        wrong.append("the full disk is told of again and again")
    if fault in GONE and (run / "config.yaml").exists():
        wrong.append("a new folder was made")
    return wrong


GONE = [fault for fault in FAULTS if fault.name.startswith("the run folder")]
