"""Beats: the state that ranks send each other four times a second, and the threads that send it.

Each pair of ranks exchanges beats over a gloo group that is used for nothing else, in a thread for each
peer. `liveness.py` decides from them who is lost.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import torch


if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


BEAT_SECONDS = 0.25

# Longest wait for others to receive a beat: one of them may be silent.
_SECONDS_TO_KNOW = 1.0

# A rank that failed has this long to write its error.
SECONDS_TO_TELL = 3.0

# gloo closes all connections when a wait times out, so the time limits are kept here.
_NO_LIMIT = timedelta(days=365)

# Time of a failure that only follows from that of another rank, whose error says more.
LATER = 2**63 - 1


class EndReason(IntEnum):
    """Why a rank ends before its time, as beats carry it."""

    NOTHING = 0
    FAILED = 1
    LOST = 2
    STANDING = 3


class Beat(NamedTuple):
    """State that a rank sends to every other.

    Attributes:
        updates: done so far.
        is_paused: whether it does something else than updates, and says so.
        may_be_silent: whether what it does may hold the interpreter, so that no beat comes.
        ends: whether it has nothing more to do.
        is_done: whether the run is done and saved.
        why: an `EndReason`, if the rank ends before its time.
        about: number of the rank that the reason is about.
        since: when the failure was, in ns; `LATER` if another rank says more.
        host: number that ranks of one host share.
        pid: of its process.
    """

    updates: int = 0
    is_paused: bool = True
    may_be_silent: bool = True
    ends: bool = False
    is_done: bool = False
    why: int = EndReason.NOTHING
    about: int = 0
    since: int = 0
    host: int = 0
    pid: int = 0


_FORMAT = struct.Struct("<q????q4q")


@dataclass
class Peer:
    """What is known of another rank.

    Attributes:
        beat: the last one; a pause until the first has come.
        heard_at: when that was.
        moved_at: when it did an update, or was in a pause, for the last time.
        failed_at: when its first beat with a failure came.
        is_closed: whether its connection is.
        acknowledged: newest version of this rank's beat that it has received.
        has_ended: whether it and this rank have both sent that they have nothing more to do.
        is_given_up: whether it is lost without that, after all work was done.
    """

    beat: Beat = field(default_factory=Beat)
    heard_at: float = field(default_factory=monotonic)
    moved_at: float = field(default_factory=monotonic)
    failed_at: float | None = None
    is_closed: bool = False
    acknowledged: int = 0
    has_ended: bool = False
    is_given_up: bool = False

    def hear(self, beat: Beat) -> None:
        """Note what came."""
        now = monotonic()
        if beat.is_paused or beat.updates != self.beat.updates:
            self.moved_at = now
        if beat.why == EndReason.FAILED and self.failed_at is None:
            self.failed_at = now
        self.beat, self.heard_at = beat, now

    def has_reported(self, now: float) -> bool:
        """Return whether it has failed and written its error, or had the time to."""
        return self.failed_at is not None and (
            self.is_closed or now - self.failed_at > SECONDS_TO_TELL
        )


@dataclass
class Progress:
    """How far this rank is. The thread that trains writes it, without a lock: once an update.

    Attributes:
        updates: done so far.
        moved_at: when it did an update, or left a pause, for the last time.
        slowest_seconds: that an update took.
        num_pauses: that it is in, one inside another.
        num_silent_pauses: those of them in which no beat may come from it.
    """

    updates: int = 0
    moved_at: float = field(default_factory=monotonic)
    slowest_seconds: float = 0.0
    num_pauses: int = 0
    num_silent_pauses: int = 0

    def note_updates(self, updates: int) -> bool:
        """Note how many updates are done, and return whether these are the first."""
        now = monotonic()
        if self.updates and not self.num_pauses:
            self.slowest_seconds = max(self.slowest_seconds, now - self.moved_at)
        is_first = updates > 0 and not self.updates
        self.updates, self.moved_at = updates, now
        return is_first

    def begin_pause(self, *, may_be_silent: bool) -> bool:
        """Enter a pause, and return whether the others do not know that they must allow for it."""
        self.num_pauses += 1
        self.num_silent_pauses += may_be_silent
        return self.num_pauses == 1 or (may_be_silent and self.num_silent_pauses == 1)

    def end_pause(self, *, may_be_silent: bool) -> None:
        """Leave a pause."""
        self.num_pauses -= 1
        self.num_silent_pauses -= may_be_silent
        self.moved_at = monotonic()


class BeatExchange:
    """Exchanges beats with every other rank, in a thread for each.

    Args:
        group: of gloo, over all ranks, that nobody else uses.
        progress: of this rank; each beat carries its newest updates.
        rank: of this process.
        world: number of ranks.

    Attributes:
        changed: the lock of all that is here; notified when the own beat changes, and when something
            has happened to a peer.
        peers: what is known of the other ranks, by number.
        own: the beat of this rank, but for its updates.
    """

    def __init__(self, group: ProcessGroup, progress: Progress, *, rank: int, world: int) -> None:
        self.changed = threading.Condition()
        self.peers = {peer: Peer() for peer in range(world) if peer != rank}
        self.own = Beat(is_paused=False, may_be_silent=False, host=_host(), pid=os.getpid())
        self._group, self._progress = group, progress
        self._version = 0
        self._threads = [
            threading.Thread(
                target=self._talk, args=(peer,), name=f"gapless-heartbeat-{peer}", daemon=True
            )
            for peer in self.peers
        ]

    def start(self) -> None:
        """Begin to exchange beats; every rank has to.

        Sync: Does not block the host.
        """
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until this rank and all others have ended.

        Sync: Blocks the host until then.
        """
        for thread in self._threads:
            thread.join()

    def tell(self, **changes: object) -> None:
        """Change the own beat, and send it now. The caller holds the lock."""
        self.own = self.own._replace(**changes)  # type: ignore[arg-type]
        self._version += 1
        self.changed.notify_all()

    def wait_until_known(self) -> None:
        """Wait until all ranks that are left have received this rank's newest beat, for a limited time.

        The caller holds the lock.

        Sync: Blocks the host for a quarter of a second or so, a second at most.
        """
        self.changed.wait_for(self._is_known, _SECONDS_TO_KNOW)

    def _is_known(self) -> bool:
        return all(
            peer.acknowledged == self._version or peer.is_closed or peer.has_ended
            for peer in self.peers.values()
        )

    def _talk(self, number: int) -> None:
        """Exchange beats with a peer until both have ended, or its connection closes."""
        peer = self.peers[number]
        sent, got = bytearray(_FORMAT.size), bytearray(_FORMAT.size)
        outgoing = torch.frombuffer(sent, dtype=torch.uint8)
        incoming = torch.frombuffer(got, dtype=torch.uint8)
        while not peer.has_ended:
            with self.changed:
                own, version = self.own._replace(updates=self._progress.updates), self._version
            _FORMAT.pack_into(sent, 0, *own)
            try:
                works = (
                    self._group.recv([incoming], number, 0),
                    self._group.send([outgoing], number, 0),
                )
                for work in works:
                    work.wait(_NO_LIMIT)
            except RuntimeError:
                with self.changed:
                    peer.is_closed = True
                    self.changed.notify_all()
                return
            with self.changed:
                peer.hear(Beat(*_FORMAT.unpack(got)))
                has_told = version != peer.acknowledged
                peer.acknowledged = version
                # Both ranks see this after the same exchange, so neither waits for a further beat.
                peer.has_ended = own.ends and peer.beat.ends
                if has_told or peer.has_ended or peer.beat.why != EndReason.NOTHING:
                    self.changed.notify_all()
                if not peer.has_ended:
                    self._wait_for_news(version)

    def _wait_for_news(self, version: int) -> None:
        """Wait until the next beat is due or the own beat changes. The caller holds the lock."""
        self.changed.wait_for(lambda: self._version != version, BEAT_SECONDS)


def _host() -> int:
    """Return a number that is the same in processes which can signal each other."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return zlib.crc32("".join(names).encode())
