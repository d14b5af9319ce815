"""Judge from the beats which rank is lost or has failed, and whether all ranks hang.

Nothing here waits, writes or ends a process; `heartbeat.py` does.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from gapless.ranks.beats import BEAT_SECONDS, EndReason


if TYPE_CHECKING:
    from gapless.ranks.beats import BeatExchange, Peer, Progress


# A rank without a beat for this long is silent: stopped, or on a host that cannot be reached.
SILENT_SECONDS = 3.5

# Ranks hang if they do no update for this long, and for this many times their slowest update.
STILL_SECONDS = 60.0
_STILL_STEPS = 20


class End(NamedTuple):
    """Why this process ends before its time.

    Attributes:
        why: an `EndReason`.
        about: number of the rank that the reason is about.
    """

    why: int
    about: int


class Liveness:
    """Judges the other ranks. Whoever asks holds the lock of the beats.

    Args:
        beats: what came from the others.
        progress: of this rank.
        rank: of this process.
        silent_seconds: as of `Heartbeat`.
        still_seconds: as of `Heartbeat`.

    Attributes:
        is_stop_asked: whether a silent rank is lost even in a pause.
        has_failed: whether this rank has failed itself, and writes its own error.
    """

    def __init__(
        self,
        beats: BeatExchange,
        progress: Progress,
        *,
        rank: int,
        silent_seconds: float,
        still_seconds: float,
    ) -> None:
        self.is_stop_asked = self.has_failed = False
        self._beats, self._progress = beats, progress
        self._rank = rank
        self._silent_seconds, self._still_seconds = silent_seconds, still_seconds
        self._silent_without_updates = max(silent_seconds, still_seconds)

    def allow_for(self, seconds: float) -> None:
        """Move all times of peers on by a time in which this process itself was held up.

        A process that was stopped, or whose interpreter was held, heard nobody: without this it would
        give up ranks that live.
        """
        if seconds < 4 * BEAT_SECONDS:
            return
        self._progress.moved_at += seconds
        for peer in self._beats.peers.values():
            peer.heard_at += seconds
            peer.moved_at += seconds

    def is_all_done(self) -> bool:
        """Return whether the run is done and saved, so that a lost rank is no error."""
        return self._beats.own.is_done or any(
            peer.beat.is_done for peer in self._beats.peers.values()
        )

    def newly_lost_when_done(self, now: float) -> list[str]:
        """Give up ranks that are lost after all work was done.

        Returns:
            A line for each of those that this rank has to report.
        """
        stands_still = self._seconds_still(now) > self._patience()
        said = []
        for number, peer in self._beats.peers.items():
            is_lost = peer.is_closed or self._is_silent(peer, now)
            is_behind = stands_still and not peer.beat.ends
            if peer.has_ended or peer.is_given_up or not (is_lost or is_behind):
                continue
            peer.is_given_up = True
            end = End(EndReason.LOST, number)
            if self.is_reported_by_another(end):
                continue
            what = self._what(end) if is_lost else f"rank {number} does not come to its end"
            said.append(f"gapless: {what}; all was done before, and is kept\n")
        return said

    def reason_to_end(self, now: float) -> End | None:
        """Return why this process has to end before its time, if it has."""
        living = {n: peer for n, peer in self._beats.peers.items() if not peer.has_ended}
        for peer in living.values():
            if peer.beat.why in (EndReason.LOST, EndReason.STANDING):
                return End(peer.beat.why, peer.beat.about)
        for number, peer in living.items():
            if peer.failed_at is None and (peer.is_closed or self._is_silent(peer, now)):
                return End(EndReason.LOST, number)
        for number, peer in living.items():
            if peer.has_reported(now) and not self.has_failed:
                return End(EndReason.FAILED, number)
        # Rank 0 alone decides it, so that one line is written; it tells the others.
        if self._rank == 0 and self._seconds_still(now) > self._patience():
            counts = self._counts()
            return End(EndReason.STANDING, min(counts, key=lambda number: counts[number]))
        return None

    def _is_silent(self, peer: Peer, now: float) -> bool:
        if peer.beat.may_be_silent and not self.is_stop_asked:
            return False
        # A library that is loaded, or a model that is built, may hold the interpreter for long.
        is_updating = peer.beat.updates > 0
        if peer.beat.is_paused and not self.is_stop_asked:
            is_updating = False
        limit = self._silent_seconds if is_updating else self._silent_without_updates
        return now - peer.heard_at > limit

    def _silent_for(self, number: int) -> float:
        return monotonic() - self._beats.peers[number].heard_at

    def _counts(self) -> dict[int, int]:
        """Return the updates that each rank has done."""
        counts = {number: peer.beat.updates for number, peer in self._beats.peers.items()}
        return {self._rank: self._progress.updates, **counts}

    def _seconds_still(self, now: float) -> float:
        if self._progress.num_pauses or not any(self._counts().values()):
            return 0.0
        return now - max(
            self._progress.moved_at, *(peer.moved_at for peer in self._beats.peers.values())
        )

    def _patience(self) -> float:
        return max(self._still_seconds, _STILL_STEPS * self._progress.slowest_seconds)

    def is_first_failure(self, since: int) -> bool:
        """Return whether no rank failed before this one did, at that time in ns."""
        failed = [
            peer.beat for peer in self._beats.peers.values() if peer.beat.why == EndReason.FAILED
        ]
        return all((since, self._rank) < (beat.since, beat.about) for beat in failed)

    def is_reported_by_another(self, end: End) -> bool:
        """Return whether another rank that is left reports why all end, so that this one need not."""
        return any(self._reports_before(number, end) for number in self._beats.peers)

    def _reports_before(self, number: int, end: End) -> bool:
        """Return whether a peer is left and reports before this rank."""
        peer = self._beats.peers[number]
        if number > self._rank or (end.why == EndReason.LOST and number == end.about):
            return False
        return not peer.is_closed or peer.beat.why in (EndReason.LOST, EndReason.STANDING)

    def line(self, end: End, *, is_error: bool) -> str:
        """Return the line that this process writes when it ends.

        Args:
            end: why it ends.
            is_error: whether this is the one line of error for all ranks.
        """
        what = self._what(end)
        if not is_error:
            return f"gapless: rank {self._rank} ends: {what}\n"
        then = "go on from the last checkpoint" if self._progress.updates else "no update was done"
        return f"gapless: error: {what}; all ranks end without saving, {then}\n"

    def _what(self, end: End) -> str:
        counts, about = self._counts(), end.about
        if end.why == EndReason.STANDING:
            others = sorted({count for number, count in counts.items() if number != about})
            at = f"rank {about} is at update {counts[about]}, the others at {' and '.join(map(str, others))}"
            if others == [counts[about]]:
                at = f"all are at update {counts[about]}"
            return f"no rank has done an update for {self._patience():.0f} s: {at}"
        # The own count is newer than that of the last beat, and at most one step ahead.
        place = f"after update {self._progress.updates}"
        if end.why == EndReason.FAILED:
            return f"rank {about} failed {place}"
        if about == self._rank:
            return (
                f"the others gave up rank {about} {place}, they had not heard of it for too long"
            )
        if self._beats.peers[about].is_closed:
            return f"rank {about} is gone {place}, its process has ended"
        silent_for = self._silent_for(about)
        if silent_for < 4 * BEAT_SECONDS:
            return f"rank {about} is gone {place}, as another rank says"
        return f"rank {about} is silent {place}, no beat came from it for {silent_for:.0f} s"
