"""Which plan is recommended, from made-up figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from gapless.compare.ranking import DEFAULT_WEIGHTS, make_weights, recommend
from gapless.errors import UserError
from gapless.records.comparison import PlanRow, Spread


CRITERIA = list(DEFAULT_WEIGHTS)

figures = st.floats(min_value=0.01, max_value=1e4)
shares = st.floats(min_value=0.0, max_value=1.0)


def make(plan, ms=10.0, **changed):
    """Return the row of a plan whose rounds all took the same time."""
    row = PlanRow(
        plan=plan,
        identical=True,
        ms_per_step=Spread.of([ms]),
        steps_per_epoch=50.0,
        throughput=1.0,
        waits_per_step=2.0,
        waited_ms_per_step=1.0,
        waits_by_reason={},
        data_wait_ms_per_step=0.0,
        launch_ms_per_step=1.0,
        host_cpu_percent=100.0,
        gap_share=0.5,
        held_memory_bytes=100,
    )
    return replace(row, **changed)


def best(*rows, weights=None, **options):
    values = {"is_accelerator": True, "total_memory_bytes": 400, **options}
    return recommend(rows, weights=make_weights(weights or {}), **values)


rows = st.lists(
    st.builds(
        lambda ms, memory, waits, gap, seconds: make(
            "",
            ms,
            held_memory_bytes=memory,
            waits_per_step=waits,
            gap_share=gap,
            capture_seconds=seconds,
        ),
        figures,
        st.integers(min_value=1, max_value=10**12),
        figures,
        shares,
        figures,
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [replace(row, plan=f"plan{n}") for n, row in enumerate(found)])

weights = st.lists(
    st.tuples(st.sampled_from(CRITERIA), st.floats(min_value=0.1, max_value=9.0)), max_size=5
).map(dict)


@settings(deadline=None)
@given(rows, weights)
def test_scores_are_shares_and_the_best_comes_first(rows, weights):
    """Every plan has a score of 0 to 1, in falling order, and the first is recommended."""
    found = best(*rows, weights=weights, total_memory_bytes=10**12)

    assert set(found.scores) == {row.plan for row in rows}
    assert all(0.0 <= score <= 1.0 + 1e-9 for score in found.scores.values())
    assert list(found.scores.values()) == sorted(found.scores.values(), reverse=True)
    assert found.plan == next(iter(found.scores))
    assert sum(found.weights.values()) == pytest.approx(1.0)


@settings(deadline=None)
@given(rows, st.sampled_from(CRITERIA), st.randoms(use_true_random=False))
def test_a_plan_that_is_better_in_nothing_is_never_preferred(rows, criterion, draw):
    """A plan that is worse in one figure and equal in all others never scores higher."""
    row = draw.choice(rows)
    worse = {
        "speed": {"ms_per_step": Spread.of([row.ms_per_step.median * 1.5])},
        "memory": {"held_memory_bytes": row.held_memory_bytes * 2},
        "waits": {"waits_per_step": row.waits_per_step + 1.0},
        "utilisation": {"gap_share": min(1.0, row.gap_share + 0.1)},
        "startup": {"capture_seconds": row.capture_seconds + 10.0},
    }[criterion]

    found = best(*rows, replace(row, plan="worse", **worse), weights={criterion: 1.0})

    assert found.scores["worse"] <= found.scores[row.plan]


@settings(deadline=None)
@given(rows)
def test_with_all_weight_on_speed_the_fastest_wins(rows):
    """If only speed has weight, the fastest plan is recommended."""
    found = best(*rows, weights={"speed": 1.0, "memory": 0.0})

    fastest = min(row.ms_per_step.median for row in rows)
    (chosen,) = (row for row in rows if row.plan == found.plan)
    assert chosen.ms_per_step.median == fastest


@pytest.mark.parametrize(
    ("weights", "plan"),
    [({}, "fast"), ({"memory": 0.9}, "lean"), ({"speed": 9.0, "memory": 1.0}, "fast")],
)
def test_weights_decide_between_speed_and_memory(weights, plan):
    """Half the time for twice the memory wins unless memory weighs more."""
    fast, lean = make("fast", 5.0, held_memory_bytes=200), make("lean", 10.0)

    assert best(lean, fast, weights=weights).plan == plan


@pytest.mark.parametrize(
    ("criterion", "change"),
    [
        ("waits", {"waits_per_step": 0.0}),
        ("utilisation", {"gap_share": 0.0}),
        ("startup", {"capture_seconds": 0.0}),
    ],
)
def test_what_has_no_weight_by_itself_decides_when_it_is_given_some(criterion, change):
    """A slower plan that has fewer waits, say, is preferred only if waits have weight."""
    fast = make("fast", 9.0, capture_seconds=120.0)
    other = replace(make("other", 10.0, capture_seconds=120.0), **change)

    assert best(fast, other).plan == "fast"
    assert best(fast, other, weights={criterion: 1.0}).plan == "other"


def test_reasons_are_figures_beside_the_references():
    """Speed, waits, utilisation and costs are told beside those of the reference."""
    blocking = make("blocking", 20.0, gap_share=0.8)
    captured = make(
        "captured",
        5.0,
        gap_share=0.04,
        waits_per_step=0.02,
        held_memory_bytes=104,
        capture_seconds=1.5,
    )

    found = best(blocking, captured, make("auto", 5.0, gap_share=0.04, held_memory_bytes=110))

    assert found.plan == "captured"
    assert found.reasons == (
        "4.00x the steps a second of blocking (5.00 ms a step)",
        "0.02 host waits a step instead of 2.00",
        "device busy 96% of the time instead of 20%; the device is the bottleneck, so no plan "
        "makes it faster",
        "costs 1.04x the memory and 1.5 s of capturing at the start",
        "equally fast within the spread of the rounds: auto",
    )


def test_memory_that_the_device_has_plenty_of_decides_nothing_against_speed():
    """Twice the memory for 17 % less time pays on a large device, not on a full one."""
    lean = make("lean", 12.1, held_memory_bytes=10 * 2**30)
    fast = make("fast", 10.1, held_memory_bytes=22 * 2**30)

    assert best(lean, fast, total_memory_bytes=140 * 2**30).plan == "fast"
    assert best(lean, fast, total_memory_bytes=23 * 2**30).plan == "lean"


def test_memory_beyond_that_of_the_device_counts_as_all_of_it():
    """Where a device can use the host's memory as well, no score is below 0."""
    only = {name: float(name == "memory") for name in CRITERIA}

    found = best(make("one", held_memory_bytes=900), weights=only, total_memory_bytes=400)

    assert found.scores == {"one": 0.0}


def test_between_plans_of_equal_speed_the_leaner_is_taken():
    """Of equally fast plans the one with less memory wins, however large the device is."""
    one, other = make("one", held_memory_bytes=200), make("other", held_memory_bytes=100)

    assert best(one, other, total_memory_bytes=10**6).plan == "other"


def test_a_slower_plan_is_never_recommended_without_a_word():
    """The reasons name the fastest plan, what decided, and how to leave that out."""
    lean = make("lean", 12.1, held_memory_bytes=10 * 2**30)
    fast = make("fast", 10.1, held_memory_bytes=22 * 2**30)

    found = best(lean, fast, total_memory_bytes=23 * 2**30)

    assert found.plan == "lean"
    assert found.reasons[-2:] == (
        "not the fastest: fast takes 10.10 ms a step, 1.20x the steps a second",
        "decided by memory (10,240 MiB held, not 22,528 MiB held); a weight of 0 leaves that out",
    )
    assert best(lean, fast, weights={"memory": 0.0}).plan == "fast"


@settings(deadline=None)
@given(rows, weights)
def test_reasons_name_the_fastest_plan_whenever_it_is_not_the_pick(rows, weights):
    """They name it only then, and what decided is a criterion that has weight."""
    found = best(*rows, weights=weights, total_memory_bytes=10**12)

    fastest = min(row.ms_per_step.median for row in rows)
    (chosen,) = (row for row in rows if row.plan == found.plan)
    told = [reason for reason in found.reasons if reason.startswith("not the fastest: ")]
    assert len(told) == (chosen.ms_per_step.median != fastest)
    assert not told or re.search(
        r"decided by (memory|waits|utilisation|startup) ", found.reasons[-1]
    )


def test_without_weight_on_speed_a_tie_is_told_too():
    """If plans are equal in all that has weight, the reasons say that the first was taken."""
    found = best(make("slow", 12.0), make("fast", 10.0), weights={"speed": 0.0, "memory": 1.0})

    assert found.plan == "slow"
    assert "the first was taken" in found.reasons[-1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"compile_seconds": 31.0}, []),
        ({"capture_seconds": 0.04}, []),
        ({"held_memory_bytes": 100_400}, []),
        ({"held_memory_bytes": 80_000}, []),
        ({"held_memory_bytes": 101_000}, ["costs 1.01x the memory"]),
        (
            {"compile_seconds": 31.0, "capture_seconds": 2.0},
            ["costs 2.0 s of capturing at the start"],
        ),
    ],
)
def test_costs_are_what_exceeds_the_reference(changed, told):
    """Compiling is no plan's own cost, and what rounds to the same figure costs nothing."""
    blocking = make("blocking", 20.0, held_memory_bytes=100_000, compile_seconds=31.0)
    ours = replace(make("ours", 5.0, held_memory_bytes=100_000), **changed)

    found = best(blocking, ours, total_memory_bytes=10**6)

    assert found.plan == "ours"
    assert [reason for reason in found.reasons if reason.startswith("costs")] == told


def test_a_plan_that_computes_something_else_is_never_recommended():
    """Such a plan is excluded with the reason, even if it is the fastest."""
    found = best(make("wrong", 1.0, identical=False), make("right", 10.0))

    assert (found.plan, list(found.scores)) == ("right", ["right"])
    assert found.excluded == {"wrong": "does not compute the same bits"}
    assert best(make("wrong", identical=False)).plan is None


@pytest.mark.parametrize("is_accelerator", [True, False])
def test_without_a_verdict_on_bits_no_plan_is_recommended(is_accelerator):
    """If it could not be found out which plans compute the same, the reasons say why."""
    row = make("gapless", identical=None)

    found = best(row, unknown=["why", "what to do"], is_accelerator=is_accelerator)

    assert (found.plan, found.reasons) == (None, ("why", "what to do"))
    assert (found.scores, found.excluded) == ({}, {})


@pytest.mark.parametrize("is_accelerator", [True, False])
def test_a_recommendation_without_a_look_at_bits_says_so(is_accelerator):
    """If bits were not to be compared, a plan is recommended, and the last reason says so."""
    one, other = make("gapless", identical=None), make("gapless")

    found = best(one, is_accelerator=is_accelerator)

    assert (found.plan, found.reasons[-1]) == ("gapless", "bits were not compared")
    assert found.reasons[:-1] == best(other, is_accelerator=is_accelerator).reasons


def test_what_was_not_measured_of_every_plan_does_not_count():
    """The weight of memory goes to speed if a plan has no figure of it."""
    one, other = make("one", 5.0, held_memory_bytes=None), make("other", 4.0)

    assert best(one, other).weights["speed"] == 1.0
    assert best(make("one"), other, total_memory_bytes=None).weights["speed"] == 1.0
    assert best(one, other, weights={"memory": 1.0, "speed": 0.0}).weights == {"speed": 1.0}


@pytest.mark.parametrize(("plans", "plan"), [(["a", "gapless"], "gapless"), (["a", "b"], "a")])
def test_a_cpu_is_told_that_it_has_no_gaps(plans, plan):
    """On a CPU gapless is recommended, or the first plan, and the reasons say why."""
    rows = [make(name, 10.0 - n, gap_share=None) for n, name in enumerate(reversed(plans))]

    found = recommend(rows[::-1], weights=make_weights({}), is_accelerator=False)

    assert found.plan == plan
    assert found.reasons[0].startswith("a CPU has no gaps to close")


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("speed", -1.0, ["speed must be a finite number of 0 or more", "-1.0"]),
        ("speed", math.nan, ["0 or more", "nan"]),
        ("speed", math.inf, ["0 or more", "inf"]),
        ("price", 1.0, ["'price'", "speed, memory, waits, utilisation, startup"]),
        ("difficulty", 0.25, ["difficulty is equal for all plans", "choose from speed"]),
    ],
)
def test_weights_out_of_range_are_refused(name, value, parts):
    """The criterion, its weight and what it may be are named."""
    with pytest.raises(UserError) as caught:
        make_weights({name: value})

    assert all(part in str(caught.value) for part in parts)


def test_all_weights_zero_are_refused():
    """At least one weight must be above zero, or nothing would decide."""
    with pytest.raises(UserError, match="all weights are 0"):
        make_weights({"speed": 0.0, "memory": 0.0})


def test_by_default_speed_weighs_three_times_as_much_as_memory():
    """Speed has 0.30 and memory 0.10, and weights are divided by their sum."""
    assert make_weights({}) == {
        "speed": pytest.approx(0.75),
        "memory": pytest.approx(0.25),
        "waits": 0.0,
        "utilisation": 0.0,
        "startup": 0.0,
    }
