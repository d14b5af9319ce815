"""Watching, captures and audits cost at most a tenth of the time as written, and five seconds."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
import torch
from hypothesis import given, strategies as st

import gapless
from gapless.graphs import account, audit
from gapless.graphs.account import ALLOWANCE_S, LEAST_AHEAD, SHARE, Account, CallTimes
from gapless.graphs.time_spent import TimeSpent
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, on


NUM_PLAIN = account.NUM_PLAIN


@pytest.fixture(autouse=True)
def as_users_have_it(ample_room, monkeypatch):
    """Count as for users: other tests let everything have room."""
    monkeypatch.setattr(account, "NUM_PLAIN", NUM_PLAIN)
    monkeypatch.setattr(account, "ALLOWANCE_S", ALLOWANCE_S)
    monkeypatch.setattr(account, "LEAST_AHEAD", LEAST_AHEAD)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now * 1000.0


class Loop:
    """Calls of some kinds, whose times are given.

    Args:
        written: seconds of a call as written, by kind.
        factors: of an action, as many times as long as a call as written.
        gain: of a replay, as a part of a call as written.
        first_s: that the first capture takes longer.
    """

    def __init__(self, written, factors, gain, first_s=0.0):
        self.clock = Clock()
        self.account = Account(self.clock)
        self.spent = TimeSpent()
        self.times = [CallTimes(self.spent) for _ in written]
        self.as_written_s = 0.0
        self._written, self._factors, self._gain = written, factors, gain
        self._done = [0] * len(written)
        self._first_s = first_s
        self._num_calls = 0

    @property
    def num_learnt(self):
        return sum(done >= 3 for done in self._done)

    def call(self, kind, pause_s=0.0):
        """Run a call as a captured step does: plain, watched twice, captured, replayed."""
        times, written_s = self.times[kind], self._written[kind]
        self.account.begin()
        what = self._what(kind, times)
        seconds = written_s * {"plain": 1.0, "replay": self._gain, **self._factors}[what]
        if what == "capture":
            seconds, self._first_s = seconds + self._first_s, 0.0
        self.clock.now += seconds
        self.account.end(times, what)
        self.clock.now += pause_s
        self.as_written_s += written_s
        self._num_calls += 1
        return what

    def _what(self, kind, times):
        done = self._done[kind]
        if done >= 3:
            return "replay"
        what = "watch" if done < 2 else "capture"
        may = (
            self.account.has_room_for(times, what)
            if done >= 2
            else self.account.may_learn(times, has_begun=done > 0, num_calls=self._num_calls)
        )
        if times.is_new or not may:
            return "plain"
        self._done[kind] += 1
        return what


seconds = st.floats(0.001, 0.5)


# Of longer calls less is guessed.
@given(
    written=st.lists(st.floats(0.001, 0.1), min_size=1, max_size=20),
    order=st.lists(st.integers(0, 19), min_size=1, max_size=400),
    watch=st.floats(1.0, 10.0),
    capture=st.floats(1.0, 13.0),
    gain=st.floats(0.05, 1.0),
)
def test_the_promise_holds_for_all_orders_of_kinds(written, order, watch, capture, gain):
    """At each call, as long as no action takes longer than was guessed."""
    loop = Loop(written, {"watch": watch, "capture": capture}, gain)
    for number in order:
        loop.call(number % len(written))
        assert loop.clock.now <= (1 + SHARE) * loop.as_written_s + ALLOWANCE_S + 1e-6


@given(factor=st.floats(1.0, 200.0), written=seconds)
def test_an_action_that_takes_longer_than_was_guessed_is_the_last_for_long(factor, written):
    loop = Loop([written] * 50, {"watch": factor, "capture": factor}, 1.0)
    for number in range(2_000):
        loop.call(number % 50)
    most = written * factor
    assert loop.clock.now <= (1 + SHARE) * loop.as_written_s + ALLOWANCE_S + most


class SlowerHost:
    """Replays that take 1 ms, on a host that becomes half as fast; all but 1 ms is the loop's own."""

    def __init__(self):
        self.clock, self.spent = Clock(), TimeSpent()
        self.account, self.times = Account(self.clock), CallTimes(self.spent)
        self.pause_s = 0.008
        self.call("plain", 8)
        self.call("replay", 100)
        self.account.begin()
        assert self.spent.saved_s == pytest.approx(0.2)
        self.pause_s *= 2

    def call(self, what, num=1):
        for _ in range(num):
            self.account.begin()
            self.clock.now += self.pause_s / 8 if what == "replay" else 3 * self.pause_s / 8
            self.account.end(self.times, what)
            self.clock.now += self.pause_s


def test_a_host_that_becomes_slower_is_no_debt_of_replays():
    """They save nothing that is known of, and what they saved before is not kept."""
    host = SlowerHost()
    host.call("replay", 1_000)
    host.account.begin()

    assert (host.account.debt_s, host.spent.saved_s) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_a_plain_call_now_and_then_shows_how_fast_the_host_is():
    """Two of them, however many came before replays: one alone may be slow by chance."""
    host, saved = SlowerHost(), []
    for _ in range(4):
        host.call("replay", 100)
        saved.append(host.spent.saved_s)
        host.call("plain")
    host.call("replay", 100)
    host.account.begin()
    saved.append(host.spent.saved_s)

    assert saved[1] == pytest.approx(0.0, abs=1e-6)
    assert saved[-1] - saved[-2] == pytest.approx(100 * 0.004, rel=0.02)


def test_what_a_first_watch_takes_is_not_expected_of_further_kinds():
    """Their code is known by then, and each object has its own first kind."""
    account, spent = Account(lambda: 0.0), [TimeSpent(), TimeSpent()]
    first, further, other = (CallTimes(spent[number]) for number in (0, 0, 1))
    for times in (first, further, other):
        times.num, times.as_written_s = NUM_PLAIN, 0.05
    account.time_s = 2.0

    account._actions["first watch"] = deque([(2.5, 0.05)])
    spent[0].num_captures = 1

    assert account.has_room_for(further, "watch")
    assert not account.has_room_for(other, "watch")
    assert str(spent[1]) == "spent no time, saved 0.0 s; 1 calls waited for room: 1 to be watched"


def test_an_audit_that_replays_earn_back_is_the_way_out_of_debt():
    """Behind an action that took far longer than expected all calls would run as written for long."""
    loop = Loop([0.01], {"watch": 3.0, "capture": 5.0}, 0.5)
    for _ in range(200):
        loop.call(0)
    room_s = SHARE * loop.account.as_written_s + ALLOWANCE_S
    may = []
    for debt_s in (room_s - 0.001, room_s + 3.0):
        loop.account.time_s = loop.account.as_written_s + debt_s
        may.append(loop.account.has_room_for(loop.times[0], "audit"))
    loop.account._actions["audit"] = deque([(0.5, 0.01)])
    may.append(loop.account.has_room_for(loop.times[0], "audit"))

    assert may == [False, True, False]


def test_a_kind_that_waits_for_room_holds_back_those_of_shorter_calls():
    """A model saves more than its optimizer, which comes behind it and needs less room."""
    account = Account(lambda: 0.0)
    long, short = CallTimes(TimeSpent()), CallTimes(TimeSpent())
    long.num, long.as_written_s = 100, 0.4
    short.num, short.as_written_s = 100, 0.01
    account.time_s = 1.0

    def learns(one):
        return account.may_learn(one, has_begun=False, num_calls=100)

    assert [learns(short), learns(long), learns(short)] == [True, False, False]

    account.as_written_s = 40.0
    assert [learns(short), learns(long), learns(short)] == [False, True, True]

    account.as_written_s = 0.0
    assert not learns(long)
    # One that is not called any more holds nobody back.
    assert [learns(short) for _ in range(300)][-1]


def test_what_replays_save_makes_room():
    loop = Loop([0.5] * 10, {"watch": 10.0, "capture": 20.0}, 0.1)
    done = [loop.call(number % 10) for number in range(4_000)]
    assert done[-10:] == ["replay"] * 10
    assert loop.spent.saved_s > 0
    assert loop.spent.num_waiting > 0


def test_a_pause_is_none_of_ours():
    """An evaluation between two calls is no time that replays have cost."""
    loop = Loop([0.01], {"watch": 3.0, "capture": 5.0}, 0.1)
    for _ in range(200):
        loop.call(0)
    before = loop.account.debt_s
    loop.call(0, pause_s=100.0)
    loop.call(0)
    assert loop.account.debt_s < before + 0.02


def test_what_a_library_takes_to_load_leaves_less_for_all_of_them():
    """Not for watches alone: what is left is shared as ever."""
    loop = Loop([0.1], {"watch": 3.0, "capture": 5.0}, 0.1)
    loop.account.charge(0.9 * ALLOWANCE_S)
    done = [loop.call(0) for _ in range(1_000)]
    assert done[-1] == "replay"
    assert "replay" not in done[:5]


def test_what_comes_seldom_is_not_learnt():
    """Where learning a kind costs more than its calls are likely to be saved."""
    loop = Loop([0.01] * 101, {"watch": 3.0, "capture": 20.0}, 0.5)
    # One kind is half of the calls, and each of the others one in two hundred.
    done = [loop.call(0 if number % 2 else 1 + number // 2 % 100) for number in range(4_000)]

    assert done[-1] == "replay"
    assert loop.num_learnt == 1


def test_what_the_first_capture_takes_is_not_expected_of_others():
    """It loads libraries; of five kinds that come all the time all are learnt soon."""
    loop = Loop([0.01] * 5, {"watch": 3.0, "capture": 20.0}, 0.3, first_s=2.5)
    for number in range(400):
        loop.call(number % 5)

    assert loop.num_learnt == 5


def test_what_replays_of_other_kinds_save_is_expected_of_further_ones():
    """Where that is next to nothing, no further kind is learnt."""
    learnt = []
    for gain in (0.3, 0.99):
        loop = Loop([0.01] * 20, {"watch": 3.0, "capture": 20.0}, gain)
        for number in range(400):
            loop.call(number % 2)
        for number in range(4_000):
            loop.call(number % 20)
        learnt.append(loop.num_learnt)

    assert learnt == [20, 2]


def test_a_wait_of_each_call_is_a_part_of_it():
    """Where the loop waits for the device between calls, a replay saves only what that leaves."""
    loop = Loop([0.01], {"watch": 3.0, "capture": 5.0}, 0.1)
    for _ in range(10):
        loop.call(0, pause_s=0.03)
    assert loop.times[0].as_written_s == pytest.approx(0.04)


def test_a_rare_shape_stays_plain_and_the_report_says_what_was_spent(monkeypatch):
    """Its calls are not watched where the account is short, and have the same results."""
    monkeypatch.setattr(account, "ALLOWANCE_S", -1.0)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        torch.manual_seed(0)
        training = Training(device)
        step = gapless.capture(training.step, device=device)
        for batch in gapless.prefetch(training.data * 2, device):
            step(batch)
    assert step.report.num_graphs == 0
    assert step.report.spent.num_waiting == len(training.data) * 2 - NUM_PLAIN
    assert "waited for room" in str(step.report)
    assert step.report.as_dict()["waiting"] == step.report.spent.num_waiting


def test_a_graph_whose_audit_waits_for_room_is_not_replayed(monkeypatch):
    """Its calls run as written, with the same results, until there is room, unless replays earn it back."""
    monkeypatch.setattr(account, "LEAST_BETWEEN_AUDITS", 0)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        torch.manual_seed(0)
        training = Training(device)
        step = gapless.capture(training.step, device=device, audit_every=5)
        replays = []
        for number, batch in enumerate(gapless.prefetch((training.data * 10)[:40], device)):
            if number == 15:
                monkeypatch.setattr(account, "ALLOWANCE_S", -1.0)
            if number == 30:
                monkeypatch.setattr(account, "ALLOWANCE_S", ALLOWANCE_S)
            before = step.report.num_replays
            step(batch)
            replays.append(step.report.num_replays > before)
    assert any(replays[:15])
    assert not any(replays[20:30])
    assert any(replays[30:])


# --- judged from outside, on a virtual clock ---


class Timed:
    """Captured steps whose runs take so many seconds of the host, in which nothing else takes any.

    Args:
        device: simulated.
        num: steps, each with a weight of its own.
        written_s: of a run as written.
        replay_s: of a replay.
        watch: a watched run takes as many times as long as a plain one.
        beside_s: of a plain call, beside what it does as written.

    Attributes:
        slowness: of the host: all takes so many times as long.
    """

    slowness = 1.0

    def __init__(self, device, num, *, written_s, replay_s, watch, beside_s=0.0, **options):
        self.device = device
        self.written_s, self.beside_s = written_s, beside_s
        self.as_written_s = 0.0
        self.start_s = self.now_s
        self.steps = [self._step(replay_s, watch, options) for _ in range(num)]

    @property
    def now_s(self):
        return self.device.now_ms() / 1000.0

    @property
    def took_s(self):
        """What a stopwatch says."""
        return self.now_s - self.start_s

    def sum_of(self, name):
        return sum(getattr(step.report.spent, name) for step in self.steps)

    def call(self, number, rows):
        self.steps[number](on(self.device, torch.ones(rows, 3)))
        self.as_written_s += self.slowness * self.written_s

    def _taking(self, seconds, call):
        def timed(*args, **kwargs):
            now_ms = self.device.now_ms() + 1000.0 * self.slowness * seconds
            self.device.timeline.pass_until(now_ms, "host")
            return call(*args, **kwargs)

        return timed

    def _step(self, replay_s, watch, options):
        weight = on(self.device, torch.zeros(3))

        def train(x):
            weight.add_(x.sum(0))
            return weight.sum()

        step = gapless.capture(train, device=self.device, **options)
        captured, callee = step._captured, step._captured.callee
        work = self._taking(self.written_s, callee.work)
        callee.work = callee.plain_work = work
        launch = self._taking(replay_s, callee.launch)
        callee.launch = captured.fast_path._launch = launch
        captured.fast_path._side = None
        warm_ups, more_s = captured.learning._warm_ups, (watch - 1) * self.written_s
        warm_ups.run = self._taking(more_s, warm_ups.run)
        captured.learning.run_plain = self._taking(self.beside_s, captured.learning.run_plain)
        return step


@pytest.mark.parametrize("num", [1, 20])
@pytest.mark.parametrize("seed", range(2))
def test_the_promise_holds_at_each_call_as_a_stopwatch_sees_it(num, seed, monkeypatch):
    """With one captured object and with twenty, whose kinds come in any order, often or once."""
    monkeypatch.setattr(account, "LEAST_AHEAD", 1e9)
    draw = Random(seed)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        timed = Timed(device, num, written_s=0.1, replay_s=0.05, watch=4.0)
        for _ in range(200):
            timed.call(draw.randrange(num), min(int(draw.expovariate(0.5)) + 1, 12))
            assert timed.took_s <= (1 + SHARE) * timed.as_written_s + ALLOWANCE_S + 1e-6
        assert timed.sum_of("watching_s") > 0
        assert num == 1 or timed.sum_of("num_waiting") > 0


@pytest.mark.parametrize("every", [None, 8])
def test_what_the_report_says_is_what_a_stopwatch_says(every, monkeypatch):
    """Seconds of watching, capturing, proving and auditing, less those that replays save, within a tenth."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        timed = Timed(device, 1, written_s=0.1, replay_s=0.01, watch=4.0, audit_every=every)
        for _ in range(150):
            timed.call(0, 4)
        spent = timed.steps[0].report.spent
    cost_s = spent.watching_s + spent.capturing_s + spent.auditing_s

    assert spent.watching_s == pytest.approx(2 * 3 * 0.1, rel=0.1)
    assert cost_s - spent.saved_s == pytest.approx(timed.took_s - timed.as_written_s, rel=0.1)


def test_what_plain_calls_take_beside_their_work_is_a_debt_as_well(monkeypatch):
    """Of kinds that are not learnt it is all there is, and leaves less for those that are."""
    monkeypatch.setattr(account, "LEAST_AHEAD", 1)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        timed = Timed(device, 1, written_s=0.1, replay_s=0.05, watch=4.0, beside_s=0.008)
        for number in range(300):
            timed.call(0, 1 + number % 25)
        spent, debt_s = timed.steps[0].report.spent, account.account_of(device).debt_s

    # The first calls of each kind are not charged, and the last one has not ended.
    num_charged = 300 - 25 * NUM_PLAIN - 1
    assert (spent.beside_s, debt_s) == pytest.approx((num_charged * 0.008,) * 2)
    assert "s beside calls as written" in str(spent)


def test_audits_show_how_fast_the_host_is_though_their_verdicts_come_at_once(monkeypatch):
    """A call behind each of them is plain."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        timed = Timed(device, 1, written_s=0.1, replay_s=0.08, watch=4.0)
        spent, saved = timed.steps[0].report.spent, []
        for number in range(900):
            timed.slowness = 1.0 if number < 100 else 2.0
            timed.call(0, 4)
            saved.append(spent.saved_s)

    assert timed.steps[0].report.audits.num < 10
    assert saved[-1] - saved[-101] == pytest.approx(100 * 0.04, rel=0.1)
