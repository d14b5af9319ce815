"""Let every fault happen to one of two real ranks, and print how all of them ended.

    cd tests && PYTHONPATH=.:../src OMP_NUM_THREADS=1 python -m ranks.fault_table --trials 50

The ranks train on the CPU under torchrun. The seconds are those from the fault until every process
is gone; with `--restarts`, until all ranks train again. Exits with 1 if one group hung, ended not as
`ranks.faults` expects, or left a run that a resume does not bring to the end of an undisturbed one.

At the end stand the seconds of each kind of fault.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from faults.processes import Launcher
from faults.runs import differences, newest_step, write_data
from faults.small_disk import SmallDisk
from ranks.faults import FAULTS, SLOW, WATCHED, inject, wrong_with
from ranks.groups import HungError, fork_ranks, torchrun
from ranks.rank_program import file_of
from ranks.runs import SAVE_EVERY, options, resume_options


# Seconds past the expected ones until a group counts as hung.
MORE = 60.0

# Says that a rank of the second attempt trains.
AGAIN = (
    """
def before_pass():
    open("again", "w").close()
"""
    + WATCHED
)

# On a GPU: plans have the same bits if shapes are few and nothing compiles.
ON_GPU = ("--device", "cuda", "--fixed-shapes", "--no-compile")


@dataclass(frozen=True)
class Tried:
    """How a group took a fault: seconds, and all that is wrong with its end."""

    seconds: float
    wrong: list[str]
    text: str


def try_fault(
    fault, launcher, folder, data, reference, *, more=(), is_forked=False, restarts=False
):
    """Let a fault happen to a new run; return how it ended.

    Args:
        fault: that happens.
        launcher: of `faults.processes`, for the resume and for forked ranks.
        folder: that must not exist yet.
        data: of the run.
        reference: the folder of a run of as many ranks that nothing disturbed.
        more: arguments of the run, as of the reference.
        is_forked: whether ranks are forked, and not started by torchrun.
        restarts: whether torchrun starts all ranks again once.
    """
    folder.mkdir()
    disk = None
    if fault.disk:
        (folder / "disk").mkdir()
        disk = SmallDisk(folder / "disk", kilobytes=4000)
    try:
        return _try(
            fault,
            launcher,
            folder,
            data,
            reference,
            disk,
            more=more,
            is_forked=is_forked,
            restarts=restarts,
        )
    except HungError as hung:
        return Tried(fault.limit + MORE, [str(hung).splitlines()[0]], str(hung))
    finally:
        if disk:
            disk.close()


def _try(fault, launcher, folder, data, reference, disk, *, more, is_forked, restarts):
    enter = disk.enter if disk else ""
    run = (disk.path if disk else folder) / "run"
    seen = (disk.seen if disk else folder) / "run"
    before = [
        enter + (fault.before if fault.before and fault.harms(rank) else SLOW) for rank in (0, 1)
    ]
    arguments = [*options(data, run), *more]
    if restarts:
        arguments.append("--resume-if-there")
    if is_forked:
        group = fork_ranks(launcher, *arguments, folder=folder / "ranks", before=before)
    else:
        again = ("--max-restarts", 1) if restarts else ()
        group = torchrun(*arguments, folder=folder / "ranks", before=before, options=again)
        for rank in (0, 1):
            file_of(group.folder, "before.py", rank, attempt=1).write_text(enter + AGAIN)
    if fault.before:
        group.until((group.folder / "harmed").exists, what="the fault")
        group.fault_is_now()
    else:
        group.until(lambda: newest_step(seen) >= SAVE_EVERY, what="an update was saved")
        group.fault_is_now()
        if disk:
            disk.fill()
        else:
            inject(fault, group)
    if is_forked and fault.stops:
        # As torchrun does, later.
        group.until_gone(1 - fault.rank, limit=fault.limit + MORE)
        group.send(fault.rank, signal.SIGKILL)
    if restarts:
        return _again(group, fault, seen, reference)
    ended = group.end(limit=fault.limit + MORE)
    wrong = wrong_with(fault, ended, torchrun=not is_forked)
    wrong += _wrong_with_saves(fault, ended, seen)
    if disk:
        disk.free()
    resumed = fork_ranks(launcher, *resume_options(run), folder=folder / "resume", before=enter)
    code = resumed.end().code
    wrong += [f"exit code {code} of the resume"] if code else differences(seen, reference)
    return Tried(ended.seconds, wrong, ended.text)


def _again(group, fault, run, reference):
    """Wait until all ranks train again and are done; return how that went."""
    group.until((group.folder / "again").exists, what="training again")
    seconds = group.seconds()
    ended = group.end()
    wrong = [f"exit code {ended.code} after the restart"] if ended.code else []
    return Tried(seconds, wrong or differences(run, reference), ended.text)


def _wrong_with_saves(fault, ended, run):
    """Return what is wrong with the newest state: whether an agreed end saved one, and said so."""
    at = newest_step(run)
    ways = (ended.out + ended.err).count("gapless train --resume")
    if fault.saves:
        wrong = [] if ways == 1 else [f"the way on is named {ways} times"]
        return wrong + ([] if at >= SAVE_EVERY else [f"the newest state is of update {at}"])
    return [f"a state of update {at} was saved"] if at % SAVE_EVERY else []


def main():
    chosen = parse()
    folder = Path(tempfile.mkdtemp(prefix="ranks-fault-table-"))
    data = write_data(folder / "data")
    launcher = Launcher()
    reference = folder / "reference"
    more = (*ON_GPU, "--plan", chosen.plan) if chosen.device == "cuda" else ("--plan", chosen.plan)
    arguments = [*options(data, reference), *more]
    ended = fork_ranks(launcher, *arguments, folder=folder / "undisturbed").end()
    if ended.code:
        print(f"two ranks do not train: {ended.text.strip().splitlines()[-1]}")
        launcher.close()
        return 1
    faults = [one for one in FAULTS if chosen.only in one.name]
    if chosen.restarts:
        faults = [one for one in faults if one.launches_again]
    rows = []
    print(f"{'fault':42}{'seconds':>9}  end", flush=True)
    for number, fault in enumerate(itertools.islice(itertools.cycle(faults), chosen.trials)):
        own = folder / str(number)
        tried = try_fault(
            fault,
            launcher,
            own,
            data,
            reference,
            more=more,
            is_forked=chosen.forked,
            restarts=chosen.restarts,
        )
        launcher.stop_all()
        rows.append((fault.kind, tried))
        print(f"{fault.name:42}{tried.seconds:9.1f}  {'; '.join(tried.wrong) or 'as expected'}")
        sys.stdout.flush()
        if tried.wrong:
            (own / "ended.txt").write_text(tried.text)
        else:
            shutil.rmtree(own)
    launcher.close()
    print("\n".join(summary_of(rows)))
    is_wrong = any(tried.wrong for _, tried in rows)
    if is_wrong:
        print(f"what differs is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return int(is_wrong)


def summary_of(rows):
    """Return the lines that say how each kind of fault ended."""
    lines = ["", f"{'kind':42}{'trials':>7}{'median s':>10}{'most s':>8}{'wrong':>7}"]
    for kind in dict.fromkeys(kind for kind, _ in rows):
        own = [tried for name, tried in rows if name == kind]
        seconds = [tried.seconds for tried in own]
        wrong = sum(bool(tried.wrong) for tried in own)
        lines.append(
            f"{kind:42}{len(own):7}{statistics.median(seconds):10.1f}{max(seconds):8.1f}{wrong:7}"
        )
    right = sum(not tried.wrong for _, tried in rows)
    return [*lines, f"{right} of {len(rows)} ended as expected"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=len(FAULTS), help="faults in turn, so many")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--forked", action="store_true", help="ranks without torchrun")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--plan", default="gapless", help="on a GPU captured, with graphs alive")
    parser.add_argument("--restarts", action="store_true", help="torchrun starts the ranks again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
