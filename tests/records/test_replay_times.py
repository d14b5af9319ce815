"""Whether replays pay, from times; pure."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gapless.records.replay_times import NUM_PAIRS, PairTimes, WindowTimes, judged, loss_text


TIMES = st.floats(min_value=1e-3, max_value=1e4)
WINDOWS = st.lists(TIMES, min_size=4, max_size=32)
PAIRS = st.builds(PairTimes, replayed_ms=TIMES, written_ms=TIMES)


def pair(replayed_ms, written_ms):
    return PairTimes(replayed_ms=replayed_ms, written_ms=written_ms)


def call_ms(times_ms):
    return WindowTimes(host_ms=times_ms, device_ms=times_ms).call_ms


@given(WINDOWS)
def test_a_call_takes_no_longer_than_the_longest_and_no_less_than_the_shortest(times_ms):
    """Rounding of a mean apart."""
    assert min(times_ms) * (1 - 1e-9) <= call_ms(times_ms) <= max(times_ms) * (1 + 1e-9)


@given(WINDOWS, st.randoms())
def test_the_order_of_calls_does_not_matter(times_ms, random):
    """Pauses may come anywhere in a window."""
    shuffled = list(times_ms)
    random.shuffle(shuffled)

    assert call_ms(shuffled) == call_ms(times_ms)


@given(st.lists(TIMES, min_size=6, max_size=6), st.lists(TIMES, min_size=2, max_size=2))
def test_pauses_in_a_quarter_of_the_calls_do_not_count(times_ms, pauses_ms):
    """Whatever their length."""
    longest = max(times_ms)
    paused = [*times_ms, *[longest + pause for pause in pauses_ms]]
    twice = [*times_ms, *[longest + 2 * pause for pause in pauses_ms]]

    assert call_ms(paused) == call_ms(twice)


@given(WINDOWS, WINDOWS)
def test_a_loop_is_as_slow_as_the_slower_of_host_and_device(host_ms, device_ms):
    """A device that works off what was launched before says nothing about the host."""
    both = WindowTimes(host_ms=host_ms, device_ms=device_ms).call_ms

    assert both == max(call_ms(host_ms), call_ms(device_ms))


@given(st.lists(PAIRS, min_size=1, max_size=NUM_PAIRS))
def test_a_clear_gain_decides_at_once_and_else_the_median(pairs):
    """A host that is shared makes single pairs gain or lose by chance."""
    ratios = [one.ratio for one in pairs]
    expected = None
    if ratios[-1] < 0.8:
        expected = "pays"
    elif len(pairs) == NUM_PAIRS:
        expected = "does_not_pay" if sorted(ratios)[NUM_PAIRS // 2] > 1.02 else "pays"

    assert judged(pairs) == expected


@given(TIMES)
def test_equal_times_decide_for_replays(time_ms):
    """Both ways are right, so nothing is changed without a reason."""
    assert judged([pair(time_ms, time_ms)] * NUM_PAIRS) == "pays"


def test_times_of_nothing_decide_for_replays():
    """A clock that stands still shows no loss."""
    assert judged([pair(0.0, 0.0)] * NUM_PAIRS) == "pays"


@pytest.mark.parametrize(("replayed_ms", "expected"), [(1.01, "pays"), (1.03, "does_not_pay")])
def test_replays_are_given_up_for_more_than_two_percent(replayed_ms, expected):
    """Less is not worth a change."""
    assert judged([pair(replayed_ms, 1.0)] * NUM_PAIRS) == expected


def test_the_text_has_the_medians_of_both():
    """One pair that was disturbed does not show."""
    pairs = [pair(4.1, 3.95), pair(9.0, 3.0), pair(4.0, 3.9), pair(4.2, 4.0), pair(4.1, 3.96)]

    assert loss_text(pairs) == "4.100 ms with replays and 3.950 ms as written"
