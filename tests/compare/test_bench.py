"""What is timed, and in which order."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gapless.compare import timed_plan
from gapless.compare.bench import run_bench
from gapless.device.instruments.processor import CompileClock
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toys import CPU, compare_settings, small_workload


def num_rounds(result):
    return [len(row.ms_per_step.rounds) for row in result.rows]


def turns(log, steps):
    """Return the plan of every round, in the order in which they were taken."""
    plans = [plan for plan, _ in log]
    return [plans[n] for n in range(0, len(plans), steps)]


def test_plans_take_turns_after_each_was_warmed_up_by_itself():
    """Every round takes each plan once, in an order that differs from round to round."""
    log = []

    result = run_bench(small_workload(log), compare_settings(rounds=8))

    order = turns(log, 4)
    assert order[:3] == ["blocking", "gapless", "interval"]
    rounds = [tuple(order[n : n + 3]) for n in range(3, len(order), 3)]
    assert len(rounds) == 8
    assert all(sorted(found) == ["blocking", "gapless", "interval"] for found in rounds)
    assert len(set(rounds)) > 1
    assert [row.plan for row in result.rows] == ["blocking", "gapless", "interval"]
    assert num_rounds(result) == [8, 8, 8]
    assert result.notes == ()


def test_every_plan_sees_the_same_batches_in_each_round():
    """A loader that shuffles gives all plans the same order, another one in each round."""
    log = []

    run_bench(small_workload(log, shuffle=True), compare_settings(steps=3))

    seen = {name: [batch for plan, batch in log if plan == name] for name, _ in log}
    assert seen["blocking"] == seen["gapless"] == seen["interval"]
    assert len(set(map(tuple, (seen["gapless"][n : n + 3] for n in range(0, 12, 3))))) > 1


def test_every_plan_starts_from_the_same_weights():
    """Each plan's model is built from the seed."""
    weights = {}

    def make(device, plan):
        workload = small_workload()(device, plan)
        weights[plan.name] = workload.model.weight.tolist()
        return workload

    run_bench(make, compare_settings(["blocking", "gapless"], seed=3))
    run_bench(make, compare_settings(["interval"], seed=4))

    assert weights["blocking"] == weights["gapless"] != weights["interval"]


def test_progress_says_what_is_under_way():
    """Progress names the warm-up of each plan, then the rounds."""
    seen = []

    run_bench(small_workload(), compare_settings(), on_progress=lambda *call: seen.append(call))

    assert list(dict.fromkeys(seen))[:3] == [
        ("warm-up of blocking", 0, 3),
        ("warm-up of gapless", 1, 3),
        ("warm-up of interval", 2, 3),
    ]
    # Once when it begins, when the workload is built, and after each warm-up round.
    assert seen.count(("warm-up of blocking", 0, 3)) == 3
    assert ("round 2 of 3", 1, 3) in seen
    assert Counter(title for title, _, _ in seen)["round 3 of 3"] == 3


def test_a_time_limit_ends_rounds_and_says_so():
    """One round is taken even if the time is up, and a note tells how many were."""
    result = run_bench(small_workload(), compare_settings(seconds=0.0))

    assert num_rounds(result) == [1, 1, 1]
    assert result.notes == ("The time limit allowed 1 of 3 rounds.",)


def test_without_room_for_all_plans_each_is_timed_by_itself(monkeypatch):
    """If the device is full after the first plan, plans are timed one by one, and a note says so."""
    log = []
    monkeypatch.setattr(CPU, "free_memory_bytes", lambda: 100)
    monkeypatch.setattr(CPU, "reserved_memory_bytes", iter(range(0, 10**6, 80)).__next__)

    result = run_bench(small_workload(log), compare_settings())

    # One warm-up for nothing, then a warm-up and three rounds for each.
    assert turns(log, 4) == ["blocking"] * 5 + ["gapless"] * 4 + ["interval"] * 4
    assert [row.plan for row in result.rows] == ["blocking", "gapless", "interval"]
    assert "no room for all plans at once" in result.notes[0]


def test_running_out_of_memory_side_by_side_is_not_the_end():
    """Plans that run out of memory together are timed one by one."""
    alive = []

    def make(device, plan):
        alive.append(plan.name)
        if len(alive) == 2:
            raise torch.OutOfMemoryError("no memory")
        return small_workload()(device, plan)

    result = run_bench(make, compare_settings())

    assert num_rounds(result) == [3, 3, 3]
    assert "no room" in result.notes[0]


def test_a_single_plan_that_does_not_fit_is_an_error():
    """A plan that has no room even alone raises what torch raised."""

    def make(device, plan):
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        run_bench(make, compare_settings(["gapless"]))


class Accelerator:
    """The CPU posing as an accelerator: figures of a device are asked for."""

    is_accelerator = True

    def __getattr__(self, name):
        return getattr(CPU, name)

    def needs_copy(self, tensor):
        return tensor.device.type != "cpu"


def noting_loads(found):
    """Return a workload whose loader shuffles, and notes under its plan what it loads."""

    def make(device, plan):
        workload = small_workload(shuffle=True)(device, plan)
        seen = found.setdefault(plan.name, [])
        loader = workload.batches
        loader.collate_fn = lambda items: seen.append(float(items[0][0])) or torch.stack(items)
        return workload

    return make


def test_a_plan_captures_in_the_warm_up_rounds_and_sees_the_same_batches():
    """The one graph is captured before the timed rounds, and the loader is not ahead afterwards."""
    loads = {}
    result = bench_on_a_simulated_gpu(noting_loads(loads), ["gapless", "captured"], steps=6)

    gapless, captured = result.rows
    assert (gapless.capture, captured.capture["num_graphs"]) == (None, 1)
    # Of the timed rounds all steps are replays.
    assert captured.capture["num_replays"] >= 2 * 6
    assert captured.late_captures == 0
    assert loads["gapless"] == loads["captured"]


def test_nothing_is_timed_after_a_trace(monkeypatch):
    """Torch's profiler may leave a library in the process that makes each launch take longer."""
    seen = []
    taking, tracing = timed_plan.TimedPlan.take_round, timed_plan.TimedPlan.trace
    monkeypatch.setattr(
        Accelerator,
        "open_utilisation_meter",
        lambda self: SimpleNamespace(close=int),
        raising=False,
    )
    monkeypatch.setattr(
        timed_plan.TimedPlan, "utilisation", lambda self, nvml, seconds: seen.append("utilisation")
    )
    monkeypatch.setattr(
        timed_plan.TimedPlan, "take_round", lambda self: (seen.append("round"), taking(self))[1]
    )
    monkeypatch.setattr(
        timed_plan.TimedPlan, "trace", lambda self: (seen.append("trace"), tracing(self))[1]
    )

    run_bench(small_workload(), compare_settings(steps=3, rounds=2, device=Accelerator()))

    assert seen == ["round"] * 6 + ["utilisation"] * 3 + ["trace"] * 3


def test_figures_that_a_device_does_not_give_are_noted():
    """A CPU that poses as an accelerator has no utilisation and no trace of kernels."""
    settings = compare_settings(["gapless"], steps=3, device=Accelerator())

    utilisation, kernels = run_bench(small_workload(), settings).notes
    assert "NVML" in utilisation
    assert "no kernel" in kernels


def bench_on_a_simulated_gpu(make, plans, **changed):
    with SimulatedDevice(scheduler="asap", durations={"kernel": 0.1, "launch": 0.2}) as device:
        return run_bench(make, compare_settings(plans, device=device, rounds=2, **changed))


def is_undecided(result):
    return any("auto had not decided when the timed rounds began" in note for note in result.notes)


def test_auto_has_decided_before_it_is_timed():
    """Plan auto takes warm-up rounds until it has decided; other plans take what was asked for."""
    log = []

    result = bench_on_a_simulated_gpu(small_workload(log), ["gapless", "auto"])

    auto = result.rows[1]
    assert auto.diagnosis is not None
    assert not is_undecided(result)
    # Nothing of the trial is left for the timed rounds.
    assert auto.late_captures == 0
    assert Counter(plan for plan, _ in log)["gapless"] == 3 * 4


def test_all_plans_see_the_same_batches_although_auto_warms_up_longer():
    """Other plans skip the batches of the warm-up rounds that only auto takes."""
    given = {}
    bench_on_a_simulated_gpu(noting_loads(given), ["gapless", "auto"], steps=3)

    assert given["gapless"] == given["auto"]
    assert len(given["auto"]) > 4 * 3


def test_auto_that_never_decides_is_timed_with_a_note(monkeypatch):
    """The warm-up rounds of auto end at a limit of steps, and a note says that it has not decided."""
    given = []
    monkeypatch.setattr(TrainLoop, "diagnosis", None)
    monkeypatch.setattr(timed_plan, "_MOST_WARMUP_STEPS", 7)

    def make(device, plan):
        workload = small_workload()(device, plan)
        loader = workload.batches
        loader.collate_fn = lambda items: given.append(items) or torch.stack(items)
        return workload

    result = bench_on_a_simulated_gpu(make, ["auto"])

    # The pass that builds, two warm-up rounds, which reach the limit, and two timed ones.
    assert len(given) == (1 + 2 + 2) * 4
    assert is_undecided(result)


def test_a_cpu_has_nothing_for_auto_to_decide():
    """On a CPU auto takes as many warm-up rounds as were asked for."""
    log = []

    result = run_bench(small_workload(log), compare_settings(["auto"]))

    assert len(log) == 4 * 4
    assert not is_undecided(result)


# --- loaders with workers ---


def rows_of_four():
    return [torch.full((4,), float(n)) for n in range(6)]


def with_workers(**options):
    """Return a function that builds the small workload with batches from worker processes."""

    def make(device, plan):
        loader = torch.utils.data.DataLoader(rows_of_four(), **{"num_workers": 1, **options})
        return replace(small_workload()(device, plan), batches=loader)

    return make


@pytest.mark.parametrize(
    ("options", "is_told"),
    [({}, True), ({"persistent_workers": True}, False), ({"num_workers": 0}, False)],
)
def test_a_note_tells_that_a_loader_starts_workers_in_every_epoch(options, is_told):
    """Persistent workers start once, in the warm-up rounds, and need no note."""
    result = run_bench(with_workers(**options), compare_settings(["gapless"], rounds=1))

    assert [note.startswith("The loader starts its workers anew") for note in result.notes] == (
        [True] if is_told else []
    )
    assert multiprocessing.active_children() == []


def test_a_loader_that_all_plans_share_keeps_its_workers_while_it_is_needed():
    """A loader made outside the function keeps its workers until the last plan is done."""
    loader = torch.utils.data.DataLoader(rows_of_four(), num_workers=1, persistent_workers=True)
    log = []

    def make(device, plan):
        return replace(small_workload(log)(device, plan), batches=loader)

    for _ in range(2):
        result = run_bench(make, compare_settings(["blocking", "gapless"], rounds=2, steps=9))
        assert num_rounds(result) == [2, 2]

    assert multiprocessing.active_children() == []


def test_workers_are_gone_after_a_step_that_fails():
    """Worker processes end although the error, and with it the epoch's frames, is still held."""

    def make(device, plan):
        def step(batch):
            raise ZeroDivisionError

        return replace(with_workers()(device, plan), step=step)

    with pytest.raises(ZeroDivisionError) as caught:
        run_bench(make, compare_settings(["gapless"]))

    assert caught.value is not None
    assert multiprocessing.active_children() == []


def test_compiling_is_timed_before_the_rounds():
    """A workload that compiles nothing has 0 seconds; the clock counts what dynamo does."""
    (row,) = run_bench(small_workload(), compare_settings(["gapless"])).rows
    assert row.compile_seconds == 0.0

    with CompileClock() as clock:
        torch.compile(lambda x: x + 1.0, backend="eager")(torch.ones(2))
    seconds = clock.seconds
    torch.compile(lambda x: x + 2.0, backend="eager")(torch.ones(2))

    assert 0.0 < seconds == clock.seconds
