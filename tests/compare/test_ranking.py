"""Which plan is recommended, from made-up figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from gapless.compare.ranking import recommend
from gapless.records.comparison import PlanRow, Spread


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


def best(*rows, is_accelerator=True, **options):
    return recommend(rows, is_accelerator=is_accelerator, **options)


rows = st.lists(
    st.builds(
        lambda ms, memory: make("", ms, held_memory_bytes=memory),
        st.floats(min_value=0.01, max_value=1e4),
        st.integers(min_value=1, max_value=10**12),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [replace(row, plan=f"plan{n}") for n, row in enumerate(found)])


@settings(deadline=None)
@given(rows)
def test_the_fastest_wins_and_of_equally_fast_ones_the_leaner(rows):
    """Rounds without a spread are equal only if they are the same."""
    found = best(*rows)

    fastest = min(row.ms_per_step.median for row in rows)
    equal = [row for row in rows if row.ms_per_step.median == fastest]
    (chosen,) = (row for row in rows if row.plan == found.plan)
    assert chosen in equal
    assert chosen.held_memory_bytes == min(row.held_memory_bytes for row in equal)


def test_memory_decides_within_the_spread_of_the_rounds_alone():
    """A leaner plan wins where its rounds overlap with the fastest, and if both have a figure."""
    fast = make("fast", held_memory_bytes=200, ms_per_step=Spread.of([9.0, 10.0, 11.0]))
    lean = make("lean", held_memory_bytes=100, ms_per_step=Spread.of([10.0, 11.0, 12.0]))

    assert best(fast, lean).plan == "lean"
    assert best(fast, replace(lean, ms_per_step=Spread.of([12.0, 13.0, 14.0]))).plan == "fast"
    assert best(fast, replace(lean, held_memory_bytes=None)).plan == "fast"


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

    found = best(blocking, ours)

    assert found.plan == "ours"
    assert [reason for reason in found.reasons if reason.startswith("costs")] == told


def test_a_plan_that_computes_something_else_is_never_recommended():
    """Such a plan is excluded with the reason, even if it is the fastest."""
    found = best(make("wrong", 1.0, identical=False), make("right", 10.0))

    assert found.plan == "right"
    assert found.excluded == {"wrong": "does not compute the same bits"}
    assert best(make("wrong", identical=False)).plan is None


@pytest.mark.parametrize("is_accelerator", [True, False])
def test_without_a_verdict_on_bits_no_plan_is_recommended(is_accelerator):
    """If it could not be found out which plans compute the same, the reasons say why."""
    row = make("gapless", identical=None)

    found = best(row, unknown=["why", "what to do"], is_accelerator=is_accelerator)

    assert (found.plan, found.reasons) == (None, ("why", "what to do"))
    assert found.excluded == {}


@pytest.mark.parametrize("is_accelerator", [True, False])
def test_a_recommendation_without_a_look_at_bits_says_so(is_accelerator):
    """If bits were not to be compared, a plan is recommended, and the last reason says so."""
    one, other = make("gapless", identical=None), make("gapless")

    found = best(one, is_accelerator=is_accelerator)

    assert (found.plan, found.reasons[-1]) == ("gapless", "bits were not compared")
    assert found.reasons[:-1] == best(other, is_accelerator=is_accelerator).reasons


@pytest.mark.parametrize(("plans", "plan"), [(["a", "gapless"], "gapless"), (["a", "b"], "a")])
def test_a_cpu_is_told_that_it_has_no_gaps(plans, plan):
    """On a CPU gapless is recommended, or the first plan, and the reasons say why."""
    rows = [make(name, 10.0 - n, gap_share=None) for n, name in enumerate(reversed(plans))]

    found = recommend(rows[::-1], is_accelerator=False)

    assert found.plan == plan
    assert found.reasons[0].startswith("a CPU has no gaps to close")
