"""What may happen to one of two ranks, and how all of them have to end.

The expected ends are those that users are promised: after each of these faults every process is
gone within five seconds, torchrun's included; what went wrong is said once; and a resume on the same
ranks ends with the bits of a run that nothing disturbed.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import EXIT_PEER_LOST


if TYPE_CHECKING:
    from collections.abc import Callable

    from ranks.groups import Ended, Group


# Seconds from a fault until every process is gone.
GONE = 5.0

# A rank whose main thread stands still is not dead: the others wait a minute for it.
STANDS_STILL = 60.0

# torchrun kills a stopped process only this long after it asked it to end.
TORCHRUN_KILLS = 30.0

# With which a rank ends that leaves without a word.
OWN_CODE = 7

SIGTERM_CODE = 128 + signal.SIGTERM

# Each backward pass, and each graph that stands for one, begins with `before_pass`.
WATCHED = """
import torch
def watched(work):
    def call(*args, **kwargs):
        before_pass()
        return work(*args, **kwargs)
    return call
torch.autograd.backward = watched(torch.autograd.backward)
torch.cuda.CUDAGraph.replay = watched(torch.cuda.CUDAGraph.replay)
"""

# It takes 30 ms longer, so that a fault arrives while the ranks train.
SLOW = (
    """
import time
def before_pass():
    time.sleep(0.03)
"""
    + WATCHED
)

# The 25th of a process is harmed.
AT_UPDATE = (
    """
import os, signal, time, torch
passes = [0]
def before_pass():
    time.sleep(0.03)
    passes[0] += 1
    if passes[0] == 25:
        open("harmed", "w").close()
        {code}
"""
    + WATCHED
)


def at_update(code):
    return AT_UPDATE.format(code=code)


@dataclass(frozen=True)
class Fault:
    """One fault of one rank, and the end that is expected.

    Attributes:
        name: for tables.
        rank: that it happens to; None for all.
        send: signals that are sent, one after another.
        before: code that runs first in that rank, if the fault happens inside it.
        disk: whether it is the disk of the run that fills up.
        limit: seconds from the fault until all processes are gone. A stopped one is gone later: it
            waits to be killed.
        codes: exit codes of the rank that it happens to, as torchrun or a waiting parent sees them.
        peer_codes: of the others; None: of those that lost a peer, or were asked to end by torchrun.
        said: parts of the one line of error; empty if no line is expected. torchrun may have asked
            the others to end before they say that a peer is lost: it says that itself.
        traceback: the last line of a traceback that is expected exactly once; no other is.
        saves: whether the end is agreed and saves the update that all have done.
        launches_again: whether torchrun may start all ranks again and they train on.
    """

    name: str
    rank: int | None
    send: tuple[int, ...] = ()
    before: str = ""
    disk: bool = False
    limit: float = GONE
    codes: frozenset[int] = frozenset()
    peer_codes: frozenset[int] | None = None
    said: tuple[str, ...] = ()
    traceback: str = ""
    saves: bool = False
    launches_again: bool = True

    @property
    def kind(self) -> str:
        """The name for whichever rank it happens to."""
        return re.sub(r"rank \d+", "a rank", self.name)

    @property
    def stops(self) -> bool:
        """Whether a rank is stopped, and has to be killed by whoever waits for it."""
        return signal.SIGSTOP in self.send

    @property
    def loses_a_peer(self) -> bool:
        """Whether a rank goes without a word."""
        return not self.codes.isdisjoint({-signal.SIGKILL, OWN_CODE})

    def harms(self, rank: int) -> bool:
        return self.rank is None or self.rank == rank


def _codes(*codes: int) -> frozenset[int]:
    return frozenset(codes)


def _for_each_rank(make: Callable[[int], Fault]) -> list[Fault]:
    return [make(rank) for rank in (0, 1)]


FAULTS = [
    *_for_each_rank(
        lambda rank: Fault(
            f"rank {rank} is killed",
            rank,
            send=(signal.SIGKILL,),
            codes=_codes(-signal.SIGKILL),
            said=(f"rank {rank}", "update"),
        )
    ),
    *_for_each_rank(
        lambda rank: Fault(
            f"rank {rank} raises",
            rank,
            before=at_update("raise RuntimeError('planted in one rank')"),
            codes=_codes(1),
            traceback="RuntimeError: planted in one rank",
        )
    ),
    Fault(
        "rank 1 ends by itself",
        1,
        before=at_update(f"os._exit({OWN_CODE})"),
        codes=_codes(OWN_CODE),
        said=("rank 1", "update"),
    ),
    Fault(
        "SIGTERM to all",
        None,
        send=(signal.SIGTERM,),
        codes=_codes(SIGTERM_CODE),
        saves=True,
        launches_again=False,
    ),
    Fault(
        "SIGINT to all",
        None,
        send=(signal.SIGINT,),
        codes=_codes(128 + signal.SIGINT),
        saves=True,
        launches_again=False,
    ),
    Fault(
        "SIGTERM to rank 1 alone",
        1,
        send=(signal.SIGTERM,),
        codes=_codes(SIGTERM_CODE),
        peer_codes=_codes(SIGTERM_CODE),
        saves=True,
        launches_again=False,
    ),
    *_for_each_rank(
        lambda rank: Fault(
            f"rank {rank} is stopped",
            rank,
            send=(signal.SIGSTOP,),
            codes=_codes(-signal.SIGKILL),
            said=(f"rank {rank}",),
        )
    ),
    Fault(
        "rank 1 is stopped, then SIGTERM to all",
        1,
        send=(signal.SIGSTOP, signal.SIGTERM),
        codes=_codes(-signal.SIGKILL),
        said=("rank 1", "silent"),
        launches_again=False,
    ),
    Fault(
        "rank 1 stands still",
        1,
        before=at_update("time.sleep(100_000)"),
        limit=STANDS_STILL + 15.0,
        said=("update",),
    ),
    Fault(
        "rank 1 is out of memory",
        1,
        before=at_update("raise torch.OutOfMemoryError('out of memory: planted in one rank')"),
        codes=_codes(1),
        said=("out of memory", "lower"),
    ),
    Fault(
        "the disk of rank 0 is full",
        0,
        disk=True,
        limit=90.0,  # one rank, too, waits for room before it gives up
        codes=_codes(2),
        said=("No space left on device",),
    ),
]


def wrong_with(fault: Fault, ended: Ended, *, torchrun: bool) -> list[str]:
    """Return in what an end differs from the one that is expected; nothing, if it does not."""
    found = []
    if ended.code == 0:
        found.append("the group ended with 0")
    limit = fault.limit + (TORCHRUN_KILLS if fault.stops else 0.0)
    if ended.seconds > limit:
        found.append(f"took {ended.seconds:.1f} s")
    for rank, one in enumerate(ended.ranks):
        is_killed_later = fault.stops and fault.harms(rank)
        if one.seconds > (limit if is_killed_later else fault.limit):
            found.append(f"rank {rank} took {one.seconds:.1f} s")
        expected = _codes_of(fault, rank, torchrun=torchrun)
        if expected and one.code not in expected and not (torchrun and one.code is None):
            found.append(f"rank {rank} ended with {one.code}, not one of {sorted(expected)}")
    return found + _wrong_words(fault, ended, torchrun=torchrun)


def _codes_of(fault, rank, *, torchrun):
    """Return the codes that a rank may end with; none if any will do."""
    if fault.harms(rank):
        return fault.codes
    if fault.peer_codes is not None:
        return fault.peer_codes
    # An error that all know of has its own code on all.
    codes = {EXIT_PEER_LOST, *(code for code in fault.codes if 0 < code != OWN_CODE)}
    return codes | ({SIGTERM_CODE, -signal.SIGTERM} if torchrun else set())


def _wrong_words(fault, ended, *, torchrun):
    found = []
    said = [line for line in ended.errors if all(part in line for part in fault.said)]
    fewest = 0 if torchrun and fault.loses_a_peer else 1
    if fault.said and not fewest <= len(said) <= 1:
        found.append(f"{' and '.join(fault.said)} said {len(said)} times")
    others = [line for line in ended.errors if not fault.said or line not in said]
    # With the traceback stands what to do about it.
    if len(others) > bool(fault.traceback):
        found.append(f"said too: {others[-1]}")
    tracebacks = (ended.out + ended.err).count("Traceback (most recent call last)")
    if tracebacks != bool(fault.traceback):
        found.append(f"{tracebacks} tracebacks")
    elif fault.traceback and fault.traceback not in ended.err:
        found.append(f"no {fault.traceback}")
    return found


def inject(fault: Fault, group: Group) -> None:
    """Let a fault that comes from outside happen now."""
    first, *others = fault.send
    if fault.rank is None:
        group.ask_to_end(first)
    else:
        group.send(fault.rank, first)
    for number in others:
        group.ask_to_end(number)
