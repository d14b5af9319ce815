"""The heartbeat of the ranks: whoever dies, fails or stands still ends all of them.

Nothing else does. A collective inside a captured graph is seen by no watchdog, and the host that
waits for it reads no signal, so that the ranks which are left would wait for ever.

Each pair of ranks exchanges a beat four times a second, over a gloo group that is used for nothing
else, in a thread for each peer. One more thread looks at what they heard. It ends the process by
`os._exit`: the main thread may sit in a wait for the device that nothing ends.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self

import torch

from gapless.errors import EXIT_PEER_LOST
from gapless.python_private import exit_now


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup


# A rank without a beat for as long is silent: stopped, or on a host that cannot be reached.
SILENT_SECONDS = 3.5

# Ranks that do no update for as long, or for as many times their slowest one, stand still.
STILL_SECONDS = 60.0
_STILL_STEPS = 20

_BEAT_SECONDS = 0.25

# The launcher looks ten times a second who has ended. Whoever ends because of another waits, so that
# the launcher sees the other first, and names it.
_SECONDS_BEHIND = 0.5

# Nobody waits longer for others to hear what it tells: one of them may be silent.
_SECONDS_TO_KNOW = 1.0

# A rank that failed has as long to say why.
_SECONDS_TO_TELL = 3.0

# gloo closes all connections when a wait times out. The time limits are here, not there.
_NO_LIMIT = timedelta(days=365)

# Why a rank ends before its time, as beats carry it.
_NOTHING, _FAILED, _LOST, _STANDING = range(4)
_LATER = 2**63 - 1


class _Beat(NamedTuple):
    """What a rank tells every other.

    Attributes:
        updates: done so far.
        is_paused: whether it does something else than updates, and says so.
        may_be_silent: whether what it does may hold the interpreter, so that no beat comes.
        ends: whether it has nothing more to do.
        is_done: whether all that the ranks do together is done and kept.
        why: it ends before its time: one of the reasons above.
        about: number of the rank that the reason is about.
        since: when the failure was, in ns; `_LATER` if another rank says more.
        host: number that ranks of one host share.
        pid: of its process.
    """

    updates: int = 0
    is_paused: bool = True
    may_be_silent: bool = True
    ends: bool = False
    is_done: bool = False
    why: int = _NOTHING
    about: int = 0
    since: int = 0
    host: int = 0
    pid: int = 0


_FORMAT = struct.Struct("<q????q4q")


@dataclass
class _Peer:
    """What is known of another rank.

    Attributes:
        beat: the last one; a pause until the first has come.
        heard_at: when that was.
        moved_at: when it did an update, or was in a pause, for the last time.
        failed_at: when it told of a failure.
        is_closed: whether its connection is.
        num_heard: how much of what this rank tells it has heard, as a count.
        has_ended: whether it and this rank have told each other that they have nothing more to do.
        is_told_of: whether it went without that, and this rank has taken note.
    """

    beat: _Beat = field(default_factory=_Beat)
    heard_at: float = field(default_factory=monotonic)
    moved_at: float = field(default_factory=monotonic)
    failed_at: float | None = None
    is_closed: bool = False
    num_heard: int = 0
    has_ended: bool = False
    is_told_of: bool = False

    def hear(self, beat: _Beat) -> None:
        """Note what came."""
        now = monotonic()
        if beat.is_paused or beat.updates != self.beat.updates:
            self.moved_at = now
        if beat.why == _FAILED and self.failed_at is None:
            self.failed_at = now
        self.beat, self.heard_at = beat, now

    def has_told(self, now: float) -> bool:
        """Return whether this rank has failed and said why, or had the time to."""
        return self.failed_at is not None and (
            self.is_closed or now - self.failed_at > _SECONDS_TO_TELL
        )


class _End(NamedTuple):
    """Why this process ends before its time.

    Attributes:
        why: one of the reasons above.
        about: number of the rank that the reason is about.
    """

    why: int
    about: int


class Heartbeat:
    """Tells the other ranks that this one lives, and ends this process when one of them does not.

    A rank that is gone or silent, one that failed, and ranks that all stand still end every rank,
    with `EXIT_PEER_LOST`. The first rank that is left says in one line of error why; the others say
    that they end. Of ranks that stand still each writes the stacks of its threads. Once all is done,
    a rank that is lost ends nobody; the first that is left says so.

    Args:
        group: of gloo, over all ranks, that nobody else uses.
        rank: of this process.
        world: number of ranks.
        silent_seconds: without a beat, after which a rank is given up; before its first update, and
            in a pause, it is after `still_seconds`.
        still_seconds: without an update, after which all are, if that is more than 20 times the
            longest that one took. Before the first update nobody stands still.
        parent: process that started this one; when it is gone, nobody could end this one any more,
            so that it gets a SIGTERM. None: nobody is looked after.
    """

    def __init__(
        self,
        group: ProcessGroup,
        *,
        rank: int,
        world: int,
        silent_seconds: float = SILENT_SECONDS,
        still_seconds: float = STILL_SECONDS,
        parent: int | None = None,
    ) -> None:
        self._group = group
        self._rank = rank
        self._silent_seconds, self._still_seconds = silent_seconds, still_seconds
        self._parent = parent
        self._silent_without_updates = max(silent_seconds, still_seconds)
        self._peers = {peer: _Peer() for peer in range(world) if peer != rank}
        # Notified when the own beat changes, and when something has happened to a peer.
        self._changed = threading.Condition()
        self._own = _Beat(is_paused=False, may_be_silent=False, host=_host(), pid=os.getpid())
        self._num_told = 0
        self._num_pauses = self._num_silent_pauses = 0
        self._updates = 0
        self._moved_at = monotonic()
        self._slowest_seconds = 0.0
        self._is_stop_asked = self._has_failed = self._is_ending = False
        self._talks = [
            threading.Thread(target=self._talk, args=(peer,), name=f"gapless-heartbeat-{peer}")
            for peer in self._peers
        ]
        self._watcher = threading.Thread(target=self._watch, name="gapless-heartbeat")

    def start(self) -> Self:
        """Begin to beat; every rank has to.

        Sync: Does not block the host.
        """
        for thread in (*self._talks, self._watcher):
            thread.daemon = True
            thread.start()
        return self

    def note_updates(self, updates: int) -> None:
        """Tell the others how many updates this rank has done.

        Sync: Does not block the host.
        """
        now = monotonic()
        if self._updates and not self._num_pauses:
            self._slowest_seconds = max(self._slowest_seconds, now - self._moved_at)
        is_first = updates > 0 and not self._updates
        self._updates, self._moved_at = updates, now
        if is_first:
            # From now on the others expect a beat within seconds.
            with self._changed:
                self._tell()

    @contextmanager
    def pause(self, *, may_be_silent: bool = True) -> Iterator[None]:
        """Tell the others that this rank is alive in the body, though it does no updates.

        Args:
            may_be_silent: whether the body may hold the interpreter for long, so that no beat comes
                from this rank. Otherwise a rank without a beat is lost, after as long as ranks may
                stand still.

        Sync: Blocks the host until the others know, for a quarter of a second or so: what follows
            may keep this rank from telling them.
        """
        with self._changed:
            self._num_pauses += 1
            self._num_silent_pauses += may_be_silent
            is_new = self._num_pauses == 1 or (may_be_silent and self._num_silent_pauses == 1)
            if is_new:
                self._tell_of_pauses()
                self._changed.wait_for(self._is_known, _SECONDS_TO_KNOW)
        try:
            yield
        finally:
            with self._changed:
                self._num_pauses -= 1
                self._num_silent_pauses -= may_be_silent
                self._moved_at = monotonic()
                self._tell_of_pauses()

    def _tell_of_pauses(self) -> None:
        self._tell(is_paused=self._num_pauses > 0, may_be_silent=self._num_silent_pauses > 0)

    def note_stop(self) -> None:
        """Take a silent rank for lost though it said that it pauses: this one is asked to stop.

        May be called by a signal handler.
        """
        self._is_stop_asked = True

    def note_done(self) -> None:
        """Tell all that what they do together is done and kept, so that nobody needs another any more.

        Sync: Blocks the host until the others know, for a quarter of a second or so.
        """
        with self._changed:
            self._tell(is_done=True)
            self._changed.wait_for(self._is_known, _SECONDS_TO_KNOW)

    def end(self) -> bool:
        """Stop together with all ranks, so that the first one to leave does not look dead.

        Returns:
            Whether all have. If one of them is lost before, and not all is done, the process ends.

        Sync: Blocks the host until all ranks are here, but those that are lost when all is done.
        """
        with self._changed:
            self._tell(ends=True)
        self._watcher.join()
        if not all(peer.has_ended for peer in self._peers.values()):
            return False
        for thread in self._talks:
            thread.join()
        return True

    def let_tell(self) -> None:
        """Wait a little before an error of a connection is raised, and let the heartbeat tell of it.

        Whoever is lost is heard of within a second; then this process ends here.

        Sync: Blocks the host for a second at most, if no rank is lost.
        """
        time.sleep(4 * _BEAT_SECONDS)
        with self._changed:
            is_ending = self._is_ending
        if is_ending:
            self._wait_for_end_of_process()

    def fail(self, tell: Callable[[], None] | None, *, code: int) -> NoReturn:
        """End this process, and all ranks, because of an error on this one.

        Of the errors of several ranks the first is told. None is if a rank is lost: they follow from
        that.

        Args:
            tell: writes the error; None: another rank has one that says more.
            code: that the process exits with, if no rank is lost.
        """
        since = _LATER if tell is None else time.time_ns()
        with self._changed:
            self._has_failed = True
            if not self._is_ending:
                self._tell(why=_FAILED, about=self._rank, since=since)
        # As long as it takes to hear of all that happened before.
        time.sleep(4 * _BEAT_SECONDS)
        with self._changed:
            is_ending, self._is_ending = self._is_ending, True
        if is_ending:
            self._wait_for_end_of_process()
        late = threading.Timer(_SECONDS_TO_TELL / 2, _leave, (code,))
        late.daemon = True
        late.start()
        with suppress(Exception):
            if tell is not None and self._is_first_failure(since):
                tell()
            sys.stdout.flush()
            sys.stderr.flush()
        _leave(code)

    def _wait_for_end_of_process(self) -> NoReturn:
        """Wait for the thread that watches: it has lost a rank, says so, and ends the process."""
        time.sleep(_SECONDS_TO_TELL + 4 * _SECONDS_BEHIND)
        _leave(EXIT_PEER_LOST)

    def _is_first_failure(self, since: int) -> bool:
        failed = [peer.beat for peer in self._peers.values() if peer.beat.why == _FAILED]
        return all((since, self._rank) < (beat.since, beat.about) for beat in failed)

    def _is_known(self) -> bool:
        """Return whether all that are left have heard the newest that this rank tells."""
        return all(
            peer.num_heard == self._num_told or peer.is_closed or peer.has_ended
            for peer in self._peers.values()
        )

    def _tell(self, **changes: object) -> None:
        """Change the own beat, and send it now. The caller holds the lock."""
        self._own = self._own._replace(**changes)  # type: ignore[arg-type]
        self._num_told += 1
        self._changed.notify_all()

    # --- in a thread for each peer ---

    def _talk(self, number: int) -> None:
        """Exchange beats with a peer until both have ended, or its connection closes."""
        peer = self._peers[number]
        sent, got = bytearray(_FORMAT.size), bytearray(_FORMAT.size)
        outgoing = torch.frombuffer(sent, dtype=torch.uint8)
        incoming = torch.frombuffer(got, dtype=torch.uint8)
        while not peer.has_ended:
            with self._changed:
                own, num_told = self._own._replace(updates=self._updates), self._num_told
            _FORMAT.pack_into(sent, 0, *own)
            try:
                works = (
                    self._group.recv([incoming], number, 0),
                    self._group.send([outgoing], number, 0),
                )
                for work in works:
                    work.wait(_NO_LIMIT)
            except RuntimeError:
                with self._changed:
                    peer.is_closed = True
                    self._changed.notify_all()
                return
            with self._changed:
                peer.hear(_Beat(*_FORMAT.unpack(got)))
                has_told = num_told != peer.num_heard
                peer.num_heard = num_told
                # Both see it after the same exchange: neither waits for another.
                peer.has_ended = own.ends and peer.beat.ends
                if has_told or peer.has_ended or peer.beat.why != _NOTHING:
                    self._changed.notify_all()
                if not peer.has_ended:
                    self._wait_for_news(num_told)

    def _wait_for_news(self, num_told: int) -> None:
        """Wait until the next beat is due, or there is more to tell. The caller holds the lock."""
        self._changed.wait_for(lambda: self._num_told != num_told, _BEAT_SECONDS)

    # --- in the thread that watches ---

    def _watch(self) -> None:
        end = self._wait_for_end()
        if end is not None:
            self._end(end)

    def _wait_for_end(self) -> _End | None:
        """Return why this process has to end; None when all ranks have agreed on their end."""
        looked_at = monotonic()
        with self._changed:
            while not all(peer.has_ended or peer.is_told_of for peer in self._peers.values()):
                self._changed.wait(_BEAT_SECONDS)
                now = monotonic()
                self._look_after_parent()
                self._allow_for(now - looked_at)
                looked_at = now
                if self._is_all_done():
                    self._take_note_of_lost(now)
                    continue
                end = self._reason_to_end(now)
                if end is not None and not self._is_ending:
                    self._is_ending = True
                    return end
        return None

    def _is_all_done(self) -> bool:
        return self._own.is_done or any(peer.beat.is_done for peer in self._peers.values())

    def _take_note_of_lost(self, now: float) -> None:
        """Wait no longer for ranks that are lost now that all is done."""
        stands_still = self._seconds_still(now) > self._patience()
        for number, peer in self._peers.items():
            is_lost = peer.is_closed or self._is_silent(peer, now)
            is_behind = stands_still and not peer.beat.ends
            if peer.has_ended or peer.is_told_of or not (is_lost or is_behind):
                continue
            peer.is_told_of = True
            end = _End(_LOST, number)
            if any(self._tells_before(other, end) for other in self._peers):
                continue
            what = self._what(end) if is_lost else f"rank {number} does not come to its end"
            _write(f"gapless: {what}; all was done before, and is kept\n")

    def _look_after_parent(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._parent = None
            os.kill(os.getpid(), signal.SIGTERM)

    def _allow_for(self, seconds: float) -> None:
        """Take nothing amiss that was not heard while this process itself was held up."""
        if seconds < 4 * _BEAT_SECONDS:
            return
        self._moved_at += seconds
        for peer in self._peers.values():
            peer.heard_at += seconds
            peer.moved_at += seconds

    def _reason_to_end(self, now: float) -> _End | None:
        living = {n: peer for n, peer in self._peers.items() if not peer.has_ended}
        for peer in living.values():
            if peer.beat.why in (_LOST, _STANDING):
                return _End(peer.beat.why, peer.beat.about)
        for number, peer in living.items():
            if peer.failed_at is None and (peer.is_closed or self._is_silent(peer, now)):
                return _End(_LOST, number)
        for number, peer in living.items():
            if peer.has_told(now) and not self._has_failed:
                return _End(_FAILED, number)
        # One rank decides it, so that it is said once; it tells the others.
        if self._rank == 0 and self._seconds_still(now) > self._patience():
            counts = self._counts()
            return _End(_STANDING, min(counts, key=lambda number: counts[number]))
        return None

    def _is_silent(self, peer: _Peer, now: float) -> bool:
        if peer.beat.may_be_silent and not self._is_stop_asked:
            return False
        # A library that is loaded, or a model that is built, may hold the interpreter for long.
        is_updating = peer.beat.updates > 0
        if peer.beat.is_paused and not self._is_stop_asked:
            is_updating = False
        limit = self._silent_seconds if is_updating else self._silent_without_updates
        return now - peer.heard_at > limit

    def _silent_for(self, number: int) -> float:
        return monotonic() - self._peers[number].heard_at

    def _counts(self) -> dict[int, int]:
        """Return the updates that each rank has done."""
        counts = {number: peer.beat.updates for number, peer in self._peers.items()}
        return {self._rank: self._updates, **counts}

    def _seconds_still(self, now: float) -> float:
        if self._num_pauses or not any(self._counts().values()):
            return 0.0
        return now - max(self._moved_at, *(peer.moved_at for peer in self._peers.values()))

    def _patience(self) -> float:
        return max(self._still_seconds, _STILL_STEPS * self._slowest_seconds)

    def _end(self, end: _End) -> NoReturn:
        left = {number: peer for number, peer in self._peers.items() if not peer.is_closed}
        is_told = any(self._tells_before(number, end) for number in self._peers)
        noticed_at = monotonic()
        with self._changed:
            if end.why != _FAILED:
                self._tell(why=end.why, about=end.about)
        _write(self._line(end, is_error=not is_told and end.why != _FAILED))
        if end.why == _STANDING:
            faulthandler.dump_traceback(file=2, all_threads=True)
        if end.why == _LOST and end.about in left:
            self._kill(left[end.about])
        with self._changed:
            self._changed.wait_for(self._is_known, _SECONDS_TO_KNOW)
        time.sleep(max(0.0, noticed_at + _SECONDS_BEHIND - monotonic()))
        _leave(EXIT_PEER_LOST)

    def _tells_before(self, number: int, end: _End) -> bool:
        """Return whether a peer is the one of those that are left to say why all end."""
        peer = self._peers[number]
        if number > self._rank or (end.why == _LOST and number == end.about):
            return False
        return not peer.is_closed or peer.beat.why in (_LOST, _STANDING)

    def _kill(self, peer: _Peer) -> None:
        """Kill a silent rank of this host: it may be stopped, and no milder signal would end it."""
        if peer.beat.host == self._own.host and peer.beat.pid > 0:
            with suppress(OSError):
                os.kill(peer.beat.pid, signal.SIGKILL)

    def _line(self, end: _End, *, is_error: bool) -> str:
        what = self._what(end)
        if not is_error:
            return f"gapless: rank {self._rank} ends: {what}\n"
        then = "go on from the last checkpoint" if self._updates else "no update was done"
        return f"gapless: error: {what}; all ranks end without saving, {then}\n"

    def _what(self, end: _End) -> str:
        counts, about = self._counts(), end.about
        if end.why == _STANDING:
            others = sorted({count for number, count in counts.items() if number != about})
            at = f"rank {about} is at update {counts[about]}, the others at {' and '.join(map(str, others))}"
            if others == [counts[about]]:
                at = f"all are at update {counts[about]}"
            return f"no rank has done an update for {self._patience():.0f} s: {at}"
        # The own count is newer than that of the last beat, and at most one step ahead.
        place = f"after update {self._updates}"
        if end.why == _FAILED:
            return f"rank {about} failed {place}"
        if about == self._rank:
            return (
                f"the others gave up rank {about} {place}, they had not heard of it for too long"
            )
        if self._peers[about].is_closed:
            return f"rank {about} is gone {place}, its process has ended"
        silent_for = self._silent_for(about)
        if silent_for < 4 * _BEAT_SECONDS:
            return f"rank {about} is gone {place}, as another rank says"
        return f"rank {about} is silent {place}, no beat came from it for {silent_for:.0f} s"


def _host() -> int:
    """Return a number that is the same in processes which can signal each other."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return zlib.crc32("".join(names).encode())


def _write(text: str) -> None:
    """Write if there is room, without streams and locks, which the main thread may hold."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode(errors="replace"))


def _leave(code: int) -> NoReturn:
    """End the process now, and those that it started."""
    for child in multiprocessing.active_children():
        with suppress(Exception):
            child.kill()
    exit_now(code)
