"""The account of a process: at most a tenth more time than as written, and five seconds.

To watch a call, to capture it with its proof and to audit its graph takes longer than to run it. Such an
action begins only if

    debt + expected <= W / 10 + 5 s,    debt = time so far - W

where W is what all calls so far would have taken as written: the sum of `w` over them, the median of the
plain calls of their kind. What replays save makes room for more. A kind's first two calls are not charged:
libraries are loaded in them. Where `w` is not known yet, a call counts as if it took no time as written.

The time of a call is that from its begin to the begin of the next call of any captured object, by the
host's clock: the time of the call itself, and that between the two, which is the user's. What a plain call
takes beside the work as written is a part of the debt. A pause between
them, such as an evaluation, is none of ours: of that time no more counts than a call as written takes, or
four times what is usual between calls of this kind.

A host that runs ahead of its device does not see what a replay takes. Where replays may give way to calls as
written, some of both are timed on the device as well (`gapless.graphs.call_windows`). From then on no replay
saves more than these have shown, and replays that are slower are given up.

What there is room for is not always worth it: replays of the calls of a kind that are still to come have to
save what it takes to learn it. A loop is expected to go on for as many calls as it has had, but for
`LEAST_AHEAD` at least, of which each kind has the same share as so far. They save what replays of the object
have saved. A kind that waits for room holds back those of shorter calls for a while, such as those of an
optimizer those of its model: they save less.

The expected time of an action is that of a plain call times the largest factor of the last ones that this
process has seen, or the largest time of them if that is less: most of it is work of the host, which does not grow
with the call. It is no less than a guess then. As long as none was seen it is the guess, less for calls
that take long. The first kind of an object takes longer to watch than those after it, whose code is known by
then, and is counted apart. The first capture of a process loads libraries, and says nothing of others.

Beyond the limit, where an action took longer than expected, an audit begins that its replays earn back.

A watch that takes longer than expected is not broken off: four fifths of what it takes beyond a plain call are
looks before and behind the run, and the call would have to be watched once more.
"""

from __future__ import annotations

import weakref
from collections import deque
from statistics import median
from types import MethodType
from typing import TYPE_CHECKING, Literal

from gapless.records.replay_times import judged


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device
    from gapless.graphs.time_spent import TimeSpent, What
    from gapless.records.replay_times import PairTimes


SHARE = 0.1
ALLOWANCE_S = 5.0

# Calls of a kind that run plain at first, and are not charged.
NUM_PLAIN = 2

# Of the last plain calls of a kind the median is taken, of those long ago beside new ones as many as are kept;
# of the last actions the largest factor.
_NUM_OF_MEDIAN = 15
_NUM_KEPT = 2
_NUM_ACTIONS = 8

# Guesses for actions that this process has not seen, as many times as long as a plain call. Runs as written
# are a part of that. The rest is work of the host, which does not grow with that of the device.
_FACTORS = {"first watch": 10.0, "watch": 4.0, "capture": 20.0, "audit": 5.0}
_NUM_RUNS = {"first watch": 1.0, "watch": 1.0, "capture": 4.0, "audit": 2.0}
_MOST_OF_HOST_S = 1.0

_TIMES_USUAL_PAUSE = 4.0

# What watching leaves is for captures of what was watched, and what these leave for audits.
_SHARES: dict[What, float] = {"watch": 0.6, "capture": 0.8, "audit": 1.0}

# Calls that an object is expected to have in front of it.
LEAST_AHEAD = 2_000

# Of a call as written, saved by a replay: a guess, which counts as much as so many replays.
_SHARE_SAVED = 0.6
_NUM_GUESSED = 20

# Replays between two audits of a graph, at least.
LEAST_BETWEEN_AUDITS = 32

# For so many calls a kind that waits for room holds back those of shorter calls.
_LONGEST_IN_LINE = 200

# Calls of others, after which a graph whose calls are timed counts as not called any more.
_MOST_OTHERS = 1_000


class CallTimes:
    """The times of one kind of call of one object.

    Args:
        spent: of the object.

    Attributes:
        saved_s: by all replays of the kind.
        as_written_s: what a plain call takes, None as long as none was seen.
        most_of_replay_s: more than this is not counted between the begins of a replay and of the next call.
        least_of_replay_s: nor is less than this, once replays have been timed on the device.
        num: calls that have ended, those that are not charged included.
        beside_s: what plain calls took beside the work as written.
        may_compare: whether replays give the bits of calls as written, so that any call may run either way.
        verdict: whether replays pay, None as long as that was not shown.
    """

    __slots__ = ("__weakref__", "_num_at_plain", "_pauses", "_plain", "_saving_s", "_unknown", "as_written_s", "beside_s", "least_of_replay_s", "may_compare", "most_of_replay_s", "num", "saved_s", "spent", "usual_pause_s", "verdict")  # fmt: skip

    def __init__(self, spent: TimeSpent) -> None:
        self.spent = spent
        self.saved_s = self.beside_s = 0.0
        self.may_compare = False
        self.as_written_s: float | None = None
        self.usual_pause_s = self.most_of_replay_s = self.least_of_replay_s = 0.0
        self.num = 0
        self.verdict: Literal["pays", "does_not_pay"] | None = None
        self._plain: deque[float] = deque(maxlen=_NUM_OF_MEDIAN)
        self._pauses: deque[float] = deque(maxlen=_NUM_OF_MEDIAN)
        self._unknown = self._num_at_plain = 0
        self._saving_s: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether calls of the kind run plain, whatever there is room for."""
        return self.num < NUM_PLAIN

    def add(self, what: What, seconds: float, pause_s: float) -> tuple[float, float]:
        """Take note of a call; return how long it took, and what it and those before take as written.

        Calls for which the latter was not known count as soon as it is.
        """
        self.num += 1
        if what == "plain":
            self._forget_long_ago()
            self._pauses.append(pause_s)
            self.usual_pause_s = median(self._pauses)
        counted_s = max(_TIMES_USUAL_PAUSE * self.usual_pause_s, self.as_written_s or 0.0)
        seconds += min(pause_s, counted_s)
        # The first call of all loads libraries.
        if what == "plain" and self.num > 1:
            self._plain.append(seconds)
            self.as_written_s = median(self._plain)
            pauses_s = _TIMES_USUAL_PAUSE * self.usual_pause_s
            self.most_of_replay_s = max(self.as_written_s, pauses_s)
            self._bound_saving()
        # What was captured ahead of a run may never have run plain.
        is_unknown = what == "replay" and self.as_written_s is None
        if self.num <= NUM_PLAIN or is_unknown:
            return 0.0, 0.0
        self._unknown += 1
        if self.as_written_s is None:
            return seconds, 0.0
        known_s, self._unknown = self._unknown * self.as_written_s, 0
        if what == "plain":
            # Whatever made it slow would have done so without us: a loader that stalls now and then, say.
            return self.as_written_s, known_s
        self.spent.add(what, seconds - self.as_written_s)
        return seconds, known_s

    def _forget_long_ago(self) -> None:
        """Let a few plain calls tell how fast the host is now, if those before lie far back."""
        if self.num - self._num_at_plain > _NUM_OF_MEDIAN:
            for known in (self._plain, self._pauses):
                while len(known) > _NUM_KEPT:
                    known.popleft()
        self._num_at_plain = self.num

    def compare(self, pairs: Sequence[PairTimes]) -> None:
        """Take what replays save from times of both ways, and so whether they pay."""
        self.verdict = judged(pairs)
        saving_ms = median(pair.written_ms - pair.replayed_ms for pair in pairs)
        self._saving_s = max(saving_ms, 0.0) / 1000.0
        self._bound_saving()

    def _bound_saving(self) -> None:
        if self._saving_s is not None and self.as_written_s is not None:
            self.least_of_replay_s = self.as_written_s - self._saving_s


class Account:
    """The account of all captured objects of a device.

    Args:
        now_ms: the host's clock.

    Attributes:
        time_s: that calls have taken, but for those that are not charged.
        as_written_s: what these would have taken as written, as far as that is known.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.time_s = 0.0
        self.as_written_s = 0.0
        self._charged_s = 0.0
        self._now_ms = now_ms
        # Of the last actions of each sort: what they took, and what a plain call of their kind takes.
        self._actions: dict[str, deque[tuple[float, float]]] = {}
        self._has_captured = False
        self._begun_ms = self._ended_ms = self._arrived_ms = 0.0
        # Of the work of a plain call: when it has begun, and what it has taken.
        self._work_begun_ms = self._work_ms = 0.0
        # The last call that has ended, and what it was.
        self._times: CallTimes | None = None
        self._what: What = "plain"
        # Whose calls are timed on the device, and how often others have asked since.
        self._timed: weakref.ref[object] | None = None
        self._num_asked = 0
        self._first_in_line: weakref.ref[CallTimes] | None = None
        self._num_in_line = 0

    @property
    def debt_s(self) -> float:
        """How much longer calls have taken than as written; below zero if replays saved more."""
        return self.time_s - self.as_written_s

    def arrive(self) -> None:
        """Note when a call has come: it begins once it is known to be one that may be captured."""
        self._arrived_ms = self._now_ms()

    def pass_by(self, times: CallTimes, num: int) -> None:
        """Count calls that were left alone, and so took what they take as written."""
        seconds = num * (times.as_written_s or 0.0)
        times.num += num
        self.time_s += seconds
        self.as_written_s += seconds

    def begin(self) -> float:
        """Note that a call begins, and so when the user's time behind the one before has ended.

        Returns:
            The time, in milliseconds.
        """
        now_ms, self._arrived_ms = self._arrived_ms or self._now_ms(), 0.0
        times = self._times
        if times is not None:
            self._times = None
            as_written_s = times.as_written_s
            if self._what == "replay" and as_written_s is not None:
                # The short way of `_close`: nothing that a replay takes of the host is measured apart.
                seconds = (now_ms - self._begun_ms) / 1000.0
                if seconds > times.most_of_replay_s:
                    seconds = times.most_of_replay_s
                elif seconds < times.least_of_replay_s:
                    seconds = times.least_of_replay_s
                saved_s = as_written_s - seconds
                if saved_s < 0.0:
                    # More than they have saved replays have not cost: the host has become slower.
                    saved_s = max(saved_s, min(-times.saved_s, 0.0))
                times.num += 1
                times.saved_s += saved_s
                spent = times.spent
                spent.saved_s += saved_s
                spent.replayed_s += as_written_s
                self.time_s += as_written_s - saved_s
                self.as_written_s += as_written_s
            else:
                self._close(times, now_ms)
        self._begun_ms = now_ms
        return now_ms

    def begin_work(self) -> None:
        """Note that a plain call begins with what it would do as written.

        Sync: Does not block the host.
        """
        self._work_begun_ms = self._now_ms()

    def end_work(self) -> None:
        """Note that it has done that.

        Sync: Does not block the host.
        """
        self._work_ms = self._now_ms() - self._work_begun_ms

    def end(self, times: CallTimes, what: What) -> None:
        """Note that a call is over, and what it was."""
        if what != "replay":
            self._ended_ms = self._now_ms()
        self._times, self._what = times, what

    def _close(self, times: CallTimes, now_ms: float) -> None:
        ended_ms = self._begun_ms if self._what == "replay" else self._ended_ms
        own_s = (ended_ms - self._begun_ms) / 1000.0
        pause_s = (now_ms - ended_ms) / 1000.0
        action = _action(times, self._what)
        beside_s = 0.0
        if self._what == "plain" and self._work_ms:
            beside_s, own_s = own_s - self._work_ms / 1000.0, self._work_ms / 1000.0
        self._work_ms = 0.0
        seconds, as_written_s = times.add(self._what, own_s, pause_s)
        if as_written_s:
            times.spent.beside_s += beside_s
            times.beside_s += beside_s
            seconds += beside_s
        self.time_s += seconds
        self.as_written_s += as_written_s
        if action == "capture" and not self._has_captured:
            self._has_captured = True
        elif action in _FACTORS and times.as_written_s:
            actions = self._actions.setdefault(action, deque(maxlen=_NUM_ACTIONS))
            actions.append((seconds, times.as_written_s))

    def charge(self, seconds: float) -> None:
        """Count time that no call has taken, such as that of loading a library: it leaves that much less."""
        self._charged_s += seconds

    def takes_turn(self, one: object) -> bool:
        """Return, at each call, whether calls of one graph may be timed: those of no other are.

        A graph that is not called any more gives way.
        """
        holder = None if self._timed is None else self._timed()
        if holder is one:
            self._num_asked = 0
            return True
        self._num_asked += 1
        if holder is not None and self._num_asked < _MOST_OTHERS:
            return False
        self._timed, self._num_asked = weakref.ref(one), 0
        return True

    def may_learn(self, times: CallTimes, *, has_begun: bool, num_calls: int) -> bool:
        """Return whether a kind may be watched: there is room, and it has begun or is likely to be worth it.

        Args:
            times: of the kind.
            has_begun: whether it was watched before.
            num_calls: of all kinds of the object so far.
        """
        if has_begun:
            return self.has_room_for(times, "watch")
        may = self._is_worth_it(times, num_calls) and self._is_next(times)
        if not may:
            times.spent.waiting["watch"] += 1
        return may

    def _is_next(self, times: CallTimes) -> bool:
        """Return whether there is room to learn a kind, and no kind of longer calls has waited shortly for that."""
        self._num_in_line -= 1
        first = None if self._first_in_line is None else self._first_in_line()
        if first is not None and self._num_in_line > 0 and _longer(first, times):
            return False
        has_room = self._leaves_room(self._to_learn_s(times, max), "watch")
        if has_room and first is times:
            self._first_in_line = None
        elif not has_room and first is not times:
            self._first_in_line, self._num_in_line = weakref.ref(times), _LONGEST_IN_LINE
        return has_room

    def _is_worth_it(self, times: CallTimes, num_calls: int) -> bool:
        """Return whether replays of a kind are expected to save what it takes to learn it."""
        plain_s, spent = times.as_written_s or 0.0, times.spent
        guessed_s = _NUM_GUESSED * plain_s
        saved_s = spent.saved_s + _SHARE_SAVED * guessed_s
        replayed_s = spent.replayed_s + guessed_s
        # What has come a few times may have done so by chance.
        num_ahead = (times.num - 1) * max(LEAST_AHEAD / max(num_calls, 1), 1.0)
        return num_ahead * plain_s * saved_s >= self._to_learn_s(times, median) * replayed_s

    def _to_learn_s(self, times: CallTimes, of: Callable[[list[float]], float]) -> float:
        watch_s = self._expected_s(times, "watch", of)
        return 2 * watch_s + self._expected_s(times, "capture", of)

    def has_room_for(self, times: CallTimes, what: What) -> bool:
        """Return whether an action may begin now; calls that wait for that are counted."""
        expected_s = self._expected_s(times, what)
        has_room = self._leaves_room(expected_s, what) or (
            what == "audit" and self.debt_s > self._room_s() and self._earns(times, expected_s)
        )
        if not has_room:
            times.spent.waiting[what] += 1
        return has_room

    def _earns(self, times: CallTimes, expected_s: float) -> bool:
        """Return whether the replays behind an audit save what it is expected to take, beyond any other way."""
        spent = times.spent
        share = spent.saved_s / spent.replayed_s if spent.replayed_s else _SHARE_SAVED
        return expected_s < LEAST_BETWEEN_AUDITS * share * (times.as_written_s or 0.0)

    def _room_s(self) -> float:
        return SHARE * self.as_written_s + ALLOWANCE_S - self._charged_s

    def _leaves_room(self, expected_s: float, what: What) -> bool:
        return self.debt_s + expected_s <= _SHARES[what] * self._room_s()

    def _expected_s(
        self, times: CallTimes, what: What, of: Callable[[list[float]], float] = max
    ) -> float:
        """Return how much longer an action is expected to take than a plain call; 0.0 if none was seen.

        Args:
            times: of its kind.
            what: it is.
            of: what is taken of the last ones.
        """
        action, plain_s = _action(times, what), times.as_written_s or 0.0
        of_host_s = min(plain_s * (_FACTORS[action] - _NUM_RUNS[action]), _MOST_OF_HOST_S)
        of_runs_s = plain_s * (_NUM_RUNS[action] - 1.0)
        known = self._actions.get(action)
        if not known:
            return of_runs_s + of_host_s
        factor = of([took_s / written_s for took_s, written_s in known])
        known_s = of([took_s - _NUM_RUNS[action] * written_s for took_s, written_s in known])
        return min(plain_s * max(factor - 1.0, 0.0), of_runs_s + max(known_s, of_host_s))


def _longer(one: CallTimes, other: CallTimes) -> bool:
    return (one.as_written_s or 0.0) > (other.as_written_s or 0.0)


def _action(times: CallTimes, what: What) -> str:
    """Return what an action is as its factor goes."""
    return "first watch" if what == "watch" and not times.spent.num_captures else what


_ACCOUNTS: weakref.WeakKeyDictionary[Device, Account] = weakref.WeakKeyDictionary()


def account_of(device: Device) -> Account:
    """Return the account of a device, which is that of a process: it trains on one."""
    account = _ACCOUNTS.get(device)
    if account is None:
        # A table that holds its keys by their clocks would keep all devices of a test run.
        now_ms = MethodType(type(device).now_ms, weakref.proxy(device))
        account = _ACCOUNTS[device] = Account(now_ms)
    return account
