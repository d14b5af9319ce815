"""`gapless train` as one of several processes that torchrun starts: who speaks, and who joins."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from gapless.cli.output import warn
from gapless.device.instruments.processor import num_cores
from gapless.errors import UserError
from gapless.python_private import exit_now, run_exit_functions
from gapless.report.figures import shell_name


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gapless.device.base import Device
    from gapless.errors import RankLeftError
    from gapless.ranks import Ranks
    from gapless.ranks.launch import Launch


# Those that this process has joined, as long as it has not left them.
_joined: list[Ranks] = []

# Those that it has left.
_left: list[Ranks] = []

# Most mistakes are made by all ranks, and rank 0 reports them. The others wait this long for it, since its
# imports may be slow; less without torchrun's agent, where rank 0 keeps the store, which ends with it.
_SECONDS_FOR_FIRST_RANK, _SECONDS_WITHOUT_AGENT = 20.0, 3.0

# The launcher is to see a rank that left before those that end because of it.
_SECONDS_AHEAD, _SECONDS_BEHIND = 0.3, 1.0


def is_rank_0() -> bool:
    """Return whether this process speaks for all: rank 0, or a single process."""
    return "LOCAL_RANK" not in os.environ or _number() == "0"


def is_left_to_rank_0(command: str) -> bool:
    """Return whether rank 0 runs a single-process command in place of this rank; rank 0 warns.

    Args:
        command: that torchrun has started in several processes.
    """
    if not is_rank_0():
        return True
    world = _world()
    if world != "1":
        warn(f"gapless {command} takes one process; the first of the {world} of torchrun does it")
    return False


def _number() -> str:
    """Return the number of this rank as torchrun says it; of a host's ranks if it says no other."""
    return os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"


def _world() -> str:
    """Return the number of all ranks as torchrun says it; 1 without it."""
    return (os.environ.get("WORLD_SIZE") or "1") if "LOCAL_RANK" in os.environ else "1"


def resume_command(run_dir: Path) -> str:
    """Return the command that goes on with a run as it was started; torchrun starts several ranks."""
    command = f"gapless train --resume {shell_name(run_dir)}"
    world = _world()
    own = os.environ.get("LOCAL_WORLD_SIZE", world)
    if world == "1":
        return command
    if own == world:
        return f"torchrun --standalone --nproc-per-node {world} -m {command}"
    hosts = os.environ.get("GROUP_WORLD_SIZE", "HOSTS")
    return f"torchrun --nnodes {hosts} --nproc-per-node {own} OPTIONS-AS-BEFORE -m {command}"


def rank_0_reports() -> bool:
    """Wait for rank 0 to report why all end, and return whether it or another rank has.

    torchrun ends this process then, or the other says that it leaves. If rank 0 comes to meet the others
    instead, or leaves without an error, the mistake is of this rank alone, as where hosts differ.
    """
    has_agent = "TORCHELASTIC_RUN_ID" in os.environ
    seconds = _SECONDS_FOR_FIRST_RANK if has_agent else _SECONDS_WITHOUT_AGENT
    is_over, has_failed = threading.Event(), threading.Event()

    def look() -> None:
        with suppress(Exception):
            from gapless.ranks import rendezvous
            from gapless.ranks.launch import read_launch

            if rendezvous.another_has_failed(read_launch(os.environ), seconds=seconds):
                has_failed.set()
            is_over.set()

    threading.Thread(target=look, name="gapless-first-rank", daemon=True).start()
    if _is_ended_within(seconds, or_until=is_over):
        return True
    if has_failed.is_set():
        _is_ended_within(_SECONDS_BEHIND)
    return has_failed.is_set()


def _is_ended_within(seconds: float, *, or_until: threading.Event | None = None) -> bool:
    """Wait for a signal that asks this process to end, or for an event; return whether a signal has come."""
    is_over, received = or_until or threading.Event(), list[int]()

    def receive(number: int, _: object) -> None:
        received.append(number)
        is_over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, receive)
    is_over.wait(seconds)
    return bool(received)


def naming_rank(message: str) -> str:
    """Return a message that names this rank."""
    return f"rank {_number()}: {message}"


def announce_leaving(*, code: int, why: str = "") -> bool:
    """Tell ranks that wait for this one that it will not come; nothing happens to a process alone.

    Args:
        code: that this process exits with.
        why: it leaves, after "rank N"; empty: it says so itself.

    Returns:
        Whether no other has left with an error before, as far as this process can know.

    Sync: Blocks the host until the store has it, two seconds at most; after an error 0.3 s more, so that the
        launcher sees this rank end first.
    """
    is_first = True
    if _world() == "1" or _joined or _left:
        return is_first
    with suppress(Exception):
        from gapless.ranks import rendezvous
        from gapless.ranks.launch import read_launch

        launch = read_launch(os.environ)
        is_first = rendezvous.tell_of_leaving(launch, code=code, why=why)
        if code:
            _is_ended_within(_SECONDS_AHEAD)
    return is_first


def exit_after(error: RankLeftError) -> int:
    """Wait a little for the rank that left, so that the launcher names it; return the exit code."""
    _is_ended_within(_SECONDS_BEHIND)
    return error.code or 2


def join_ranks(device: str) -> tuple[Ranks, Device | None]:
    """Join the other processes that torchrun started, if it did.

    Args:
        device: name of the device that was asked for.

    Returns:
        The ranks, and the device of this one; None if it is alone, which takes what was asked for.

    Raises:
        UserError: several ranks cannot have the devices that they are to have.
        RankLeftError: a rank ended before all were here.
        RanksError: the others cannot be reached.

    Sync: With several ranks, blocks the host until all are here.
    """
    from gapless.ranks import SingleRank, find_ranks
    from gapless.ranks.launch import check_address, device_of, read_launch

    launch = read_launch(os.environ)
    if launch.world == 1:
        return SingleRank(), None
    check_address(os.environ)
    from gapless.device.find import find_device, num_gpus

    found = find_device(device_of(launch, device, num_gpus=num_gpus()))
    found.make_current()
    ranks = find_ranks(found.torch_device, uuid=found.uuid(), launch=launch)
    _joined.append(ranks)
    if not found.is_accelerator:
        _check_cores(launch)
    return ranks, found


def _check_cores(launch: Launch) -> None:
    cores = num_cores()
    if cores < launch.local_world:
        raise UserError(
            f'`device="cpu"` has {cores} core{"s" if cores > 1 else ""} for {launch.local_world} ranks, '
            "expected one for each; start fewer"
        )


def leave_together(ranks: Ranks) -> None:
    """Leave together with all ranks, when all is done.

    Sync: Blocks the host until all ranks are here.
    """
    ranks.end()
    _joined.clear()
    _left.append(ranks)


def leave_process(code: int) -> NoReturn:
    """Exit. One of several ranks skips Python's finalization, which takes seconds.

    torchrun, and whoever has asked all ranks to stop, waits for the last of them.

    Args:
        code: of the process.
    """
    if not _left:
        sys.exit(code)
    run_exit_functions()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    exit_now(code)


def fail_together(report: Callable[[], None] | None, *, code: int) -> None:
    """End all ranks because of an error on this one; nothing happens to a process alone.

    With several ranks it does not return. An error of several at a time is reported once.

    Args:
        report: writes the error; None: another rank says more.
        code: that this process exits with.
    """
    for ranks in _joined:
        ranks.fail(report, code=code)
