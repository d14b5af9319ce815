"""The heartbeat of the ranks: whoever dies, fails or stands still ends all of them.

Nothing else does. A collective inside a captured graph is seen by no watchdog, and the host that
waits for it reads no signal, so that the ranks which are left would wait for ever.

Each pair of ranks exchanges beats (`beats.py`). One more thread looks at what was heard and judges it
(`liveness.py`). It ends the process by `os._exit`: the main thread may sit in a wait for the device that
nothing ends.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, NoReturn, Self

from gapless.errors import EXIT_PEER_LOST
from gapless.python_private import exit_now
from gapless.ranks.beats import (
    BEAT_SECONDS,
    LATER,
    SECONDS_TO_TELL,
    BeatExchange,
    EndReason,
    Progress,
)
from gapless.ranks.liveness import SILENT_SECONDS, STILL_SECONDS, Liveness


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup

    from gapless.ranks.beats import Peer
    from gapless.ranks.liveness import End


# The launcher looks ten times a second who has ended. Whoever ends because of another waits, so that
# the launcher sees the other first, and names it.
_SECONDS_BEHIND = 0.5


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
        self._parent = parent
        self._progress = Progress()
        self._beats = BeatExchange(group, self._progress, rank=rank, world=world)
        self._changed = self._beats.changed
        self._liveness = Liveness(
            self._beats,
            self._progress,
            rank=rank,
            silent_seconds=silent_seconds,
            still_seconds=still_seconds,
        )
        self._rank = rank
        self._is_ending = False
        self._watcher = threading.Thread(target=self._watch, name="gapless-heartbeat", daemon=True)

    def start(self) -> Self:
        """Begin to beat; every rank has to.

        Sync: Does not block the host.
        """
        self._beats.start()
        self._watcher.start()
        return self

    def note_updates(self, updates: int) -> None:
        """Tell the others how many updates this rank has done.

        Sync: Does not block the host.
        """
        if self._progress.note_updates(updates):
            # From now on the others expect a beat within seconds.
            with self._changed:
                self._beats.tell()

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
            if self._progress.begin_pause(may_be_silent=may_be_silent):
                self._tell_of_pauses()
                self._beats.wait_until_known()
        try:
            yield
        finally:
            with self._changed:
                self._progress.end_pause(may_be_silent=may_be_silent)
                self._tell_of_pauses()

    def _tell_of_pauses(self) -> None:
        now = self._progress
        self._beats.tell(is_paused=now.num_pauses > 0, may_be_silent=now.num_silent_pauses > 0)

    def note_stop(self) -> None:
        """Take a silent rank for lost though it said that it pauses: this one is asked to stop.

        May be called by a signal handler.
        """
        self._liveness.is_stop_asked = True

    def note_done(self) -> None:
        """Tell all that what they do together is done and kept, so that nobody needs another any more.

        Sync: Blocks the host until the others know, for a quarter of a second or so.
        """
        with self._changed:
            self._beats.tell(is_done=True)
            self._beats.wait_until_known()

    def end(self) -> bool:
        """Stop together with all ranks, so that the first one to leave does not look dead.

        Returns:
            Whether all have. If one of them is lost before, and not all is done, the process ends.

        Sync: Blocks the host until all ranks are here, but those that are lost when all is done.
        """
        with self._changed:
            self._beats.tell(ends=True)
        self._watcher.join()
        if not all(peer.has_ended for peer in self._beats.peers.values()):
            return False
        self._beats.join()
        return True

    def let_tell(self) -> None:
        """Wait a little before an error of a connection is raised, and let the heartbeat tell of it.

        Whoever is lost is heard of within a second; then this process ends here.

        Sync: Blocks the host for a second at most, if no rank is lost.
        """
        time.sleep(4 * BEAT_SECONDS)
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
        since = LATER if tell is None else time.time_ns()
        with self._changed:
            self._liveness.has_failed = True
            if not self._is_ending:
                self._beats.tell(why=EndReason.FAILED, about=self._rank, since=since)
        # As long as it takes to hear of all that happened before.
        time.sleep(4 * BEAT_SECONDS)
        with self._changed:
            is_ending, self._is_ending = self._is_ending, True
        if is_ending:
            self._wait_for_end_of_process()
        late = threading.Timer(SECONDS_TO_TELL / 2, _leave, (code,))
        late.daemon = True
        late.start()
        with suppress(Exception):
            if tell is not None and self._liveness.is_first_failure(since):
                tell()
            sys.stdout.flush()
            sys.stderr.flush()
        _leave(code)

    def _wait_for_end_of_process(self) -> NoReturn:
        """Wait for the thread that watches: it has lost a rank, says so, and ends the process."""
        time.sleep(SECONDS_TO_TELL + 4 * _SECONDS_BEHIND)
        _leave(EXIT_PEER_LOST)

    # --- in the thread that watches ---

    def _watch(self) -> None:
        end = self._wait_for_end()
        if end is not None:
            self._end(end)

    def _wait_for_end(self) -> End | None:
        """Return why this process has to end; None when all ranks have agreed on their end."""
        looked_at = monotonic()
        with self._changed:
            while not all(
                peer.has_ended or peer.is_told_of for peer in self._beats.peers.values()
            ):
                self._changed.wait(BEAT_SECONDS)
                now = monotonic()
                self._look_after_parent()
                self._liveness.allow_for(now - looked_at)
                looked_at = now
                if self._liveness.is_all_done():
                    for line in self._liveness.newly_lost_when_done(now):
                        _write(line)
                    continue
                end = self._liveness.reason_to_end(now)
                if end is not None and not self._is_ending:
                    self._is_ending = True
                    return end
        return None

    def _look_after_parent(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._parent = None
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, end: End) -> NoReturn:
        left = {number: peer for number, peer in self._beats.peers.items() if not peer.is_closed}
        is_told = self._liveness.is_told_by_another(end)
        noticed_at = monotonic()
        with self._changed:
            if end.why != EndReason.FAILED:
                self._beats.tell(why=end.why, about=end.about)
        _write(self._liveness.line(end, is_error=not is_told and end.why != EndReason.FAILED))
        if end.why == EndReason.STANDING:
            faulthandler.dump_traceback(file=2, all_threads=True)
        if end.why == EndReason.LOST and end.about in left:
            self._kill(left[end.about])
        with self._changed:
            self._beats.wait_until_known()
        time.sleep(max(0.0, noticed_at + _SECONDS_BEHIND - monotonic()))
        _leave(EXIT_PEER_LOST)

    def _kill(self, peer: Peer) -> None:
        """Kill a silent rank of this host: it may be stopped, and no milder signal would end it."""
        if peer.beat.host == self._beats.own.host and peer.beat.pid > 0:
            with suppress(OSError):
                os.kill(peer.beat.pid, signal.SIGKILL)


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
