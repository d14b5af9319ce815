"""The heartbeat of the ranks: one that dies, fails or hangs ends all of them.

Nothing else does. No watchdog of torch sees a collective inside a captured graph, and a host that
waits for one handles no signal, so the ranks that are left would wait for ever.

Each pair of ranks exchanges beats (`beats.py`). A further thread judges what came (`liveness.py`). It
ends the process by `os._exit`, because the main thread may hang in a wait for the device.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
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
from gapless.ranks.peer_errors import write_if_room


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

    Every rank ends with `EXIT_PEER_LOST` if one is gone, is silent or has failed, or if all hang. The
    first rank that is left writes one line of error with the reason; the others write that they end.
    If all hang, each also writes the stacks of its threads. Once all work is done, a rank that is lost
    ends nobody; the first that is left reports it.

    Args:
        group: of gloo, over all ranks, that nobody else uses.
        rank: of this process.
        world: number of ranks.
        silent_seconds: after which a rank without a beat is lost. Before its first update, and in a
            pause, it is lost after `still_seconds`.
        still_seconds: after which ranks that do no update hang, if that is more than 20 times their
            slowest update. Before the first update no rank hangs.
        parent: process that started this one. When it is gone, nobody could end this one any more,
            so it sends itself a SIGTERM. None: no process is watched.
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
                from this rank. Otherwise a rank without a beat is lost after `still_seconds`.

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
        """Treat a silent rank as lost even in a pause, since this one is asked to stop.

        May be called by a signal handler.
        """
        self._liveness.is_stop_asked = True

    def note_done(self) -> None:
        """Tell all ranks that the run is done and saved, so that no rank needs another any more.

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
        """Wait before a connection error is raised, so that the heartbeat can name the lost rank.

        A rank that is lost is noticed within a second; then this process ends here.

        Sync: Blocks the host for a second at most, if no rank is lost.
        """
        time.sleep(4 * BEAT_SECONDS)
        with self._changed:
            is_ending = self._is_ending
        if is_ending:
            self._wait_for_end_of_process()

    def fail(self, tell: Callable[[], None] | None, *, code: int) -> NoReturn:
        """End this process, and all ranks, because of an error on this one.

        If several ranks fail, only the first error is written. If a rank is lost, none is: they follow
        from that.

        Args:
            tell: writes the error; None: another rank has one that says more.
            code: that the process exits with, if no rank is lost.
        """
        since = LATER if tell is None else time.time_ns()
        with self._changed:
            self._liveness.has_failed = True
            if not self._is_ending:
                self._beats.tell(why=EndReason.FAILED, about=self._rank, since=since)
        # An earlier failure or loss may not have reached this rank yet, and its report comes first.
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
        """Wait for the watching thread, which reports the lost rank and ends the process."""
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
                peer.has_ended or peer.is_given_up for peer in self._beats.peers.values()
            ):
                self._changed.wait(BEAT_SECONDS)
                now = monotonic()
                self._look_after_parent()
                self._liveness.allow_for(now - looked_at)
                looked_at = now
                if self._liveness.is_all_done():
                    for line in self._liveness.newly_lost_when_done(now):
                        write_if_room(line)
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
        is_told = self._liveness.is_reported_by_another(end)
        noticed_at = monotonic()
        with self._changed:
            if end.why != EndReason.FAILED:
                self._beats.tell(why=end.why, about=end.about)
        write_if_room(
            self._liveness.line(end, is_error=not is_told and end.why != EndReason.FAILED)
        )
        if end.why == EndReason.STANDING:
            faulthandler.dump_traceback(file=2, all_threads=True)
        if end.why == EndReason.LOST and end.about in left:
            self._kill(left[end.about])
        with self._changed:
            self._beats.wait_until_known()
        time.sleep(max(0.0, noticed_at + _SECONDS_BEHIND - monotonic()))
        _leave(EXIT_PEER_LOST)

    def _kill(self, peer: Peer) -> None:
        """Kill a silent rank of this host: a stopped process does not handle SIGTERM."""
        if peer.beat.host == self._beats.own.host and peer.beat.pid > 0:
            with suppress(OSError):
                os.kill(peer.beat.pid, signal.SIGKILL)


def _leave(code: int) -> NoReturn:
    """End the process now, and those that it started."""
    for child in multiprocessing.active_children():
        with suppress(Exception):
            child.kill()
    exit_now(code)
