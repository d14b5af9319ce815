"""Learning rates as functions of the update."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from gapless.nmt.run.training_step import learning_rate


updates = st.integers(1, 20_000)
warmups = st.integers(1, 5000)


@given(updates, warmups, st.sampled_from([64, 128, 512]), st.floats(0.5, 4.0))
def test_noam_is_inverse_square_root_beyond_the_start(update, warmup, d_model, factor):
    """That of Vaswani et al. 2017, equation 3: from the peak on, and but for 1e-7 before it."""
    peak = factor / math.sqrt(d_model * warmup)
    rate = learning_rate(update, peak=peak, warmup=warmup, schedule="inverse-sqrt")

    rising = update / (warmup * math.sqrt(warmup))
    noam = factor * min(1 / math.sqrt(update), rising) / math.sqrt(d_model)
    assert math.isclose(rate, noam, rel_tol=1e-9, abs_tol=1e-7 if update < warmup else 0.0)


@given(updates, st.integers(0, 5000), st.sampled_from(["inverse-sqrt", "cosine", "constant"]))
def test_the_rate_is_highest_at_the_end_of_the_warm_up(update, warmup, schedule):
    """No update has a higher rate than the peak, none a negative one."""
    rate = learning_rate(update, peak=1e-3, warmup=warmup, schedule=schedule, total=10_000)

    assert 0.0 <= rate <= 1e-3 * (1 + 1e-12)
    at_peak = learning_rate(
        max(warmup, 1), peak=1e-3, warmup=warmup, schedule=schedule, total=10_000
    )
    assert math.isclose(1e-3, at_peak, rel_tol=1e-6)


@given(st.integers(1, 100), st.integers(0, 400))
def test_cosine_falls_to_nothing_at_the_end(warmup, more):
    """The cosine is half its height half way, 0 at the last update, and stays at 0."""
    total = warmup + 2 * (more + 1)
    rate = [
        learning_rate(n, peak=1.0, warmup=warmup, schedule="cosine", total=total)
        for n in (warmup, warmup + more + 1, total, total + 50)
    ]

    assert pytest.approx(rate, abs=1e-12) == [1.0, 0.5, 0.0, 0.0]


def test_a_run_that_ends_within_its_warm_up_has_a_rate():
    """A total below the warm-up causes no division by zero."""
    rates = [
        learning_rate(n, peak=1.0, warmup=10, schedule="cosine", total=5) for n in range(1, 12)
    ]

    assert sorted(rates[:10]) == rates[:10]
    assert all(0.0 <= rate <= 1.0 for rate in rates)


def test_constant_and_no_warm_up():
    """Without a warm-up the first update has the peak."""
    for schedule in ("constant", "inverse-sqrt", "cosine"):
        assert learning_rate(1, peak=1.0, warmup=1, schedule=schedule, total=10) == 1.0
    assert learning_rate(999, peak=1.0, warmup=0, schedule="constant") == 1.0
