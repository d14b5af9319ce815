"""What is timed, in which order, and what becomes of it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from time import perf_counter, process_time

import pytest
import torch

from gapless.compare import entrant as entrants
from gapless.compare.bench import run_bench
from gapless.compare.compare_plans import run_comparison
from gapless.compare.entrant import Entrant
from gapless.compare.plan_rows import make_row
from gapless.compare.ranking import make_weights
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.device.instruments.clocks import CompileClock, cpu_seconds
from gapless.device.instruments.kernel_trace import KernelTrace, summarise
from gapless.device.instruments.nvml import Sampler
from gapless.errors import DeviceError, UserError
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.plans import PLANS, get_plan
from gapless.report.comparison_text import comparison_text
from gapless.report.verification_text import verdict_lines
from gapless.testing.simulated.simulated_device import SimulatedDevice


CPU = find_device("cpu")


def small(log=None, *, num_batches=4, unit="", shuffle=False):
    """Return a function that builds a tiny workload; `log` notes the plan of every step."""

    def make(device, plan):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        order = torch.Generator().manual_seed(1)
        batches = torch.utils.data.DataLoader(
            torch.arange(float(4 * num_batches)).reshape(num_batches, 4),
            batch_size=1,
            shuffle=shuffle,
            generator=order,
        )

        def step(batch):
            if log is not None:
                log.append((plan.name, float(batch[0, 0])))
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return StepLoss(loss=loss, weight=3.0)

        return Workload(model=model, optimizer=optimizer, batches=batches, step=step, unit=unit)

    return make


def ask(plans=("blocking", "gapless", "interval"), **changed):
    numbers = {"steps": 4, "rounds": 3, "warmup_rounds": 1, "verify_steps": 0}
    run = {name: changed.pop(name) for name in ("seed", "tolerance") if name in changed}
    device, seconds = changed.pop("device", CPU), changed.pop("seconds", None)
    return CompareSettings(
        run=RunSettings(device=device, **run),
        rounds=Rounds(**{**numbers, **changed}),
        plans=tuple(plans),
        weights=make_weights({}),
        seconds=seconds,
    )


def small_for_any(device):
    """Build the tiny workload for any plan."""
    return small()(device, None)


def turns(log, steps):
    """Return the plan of every round, in the order in which they were taken."""
    plans = [plan for plan, _ in log]
    return [plans[n] for n in range(0, len(plans), steps)]


# --- rounds ---


def test_plans_take_turns_after_each_was_warmed_up_by_itself():
    """Every round takes each plan once; its order differs from round to round."""
    log = []

    result = run_bench(small(log), ask(rounds=8))

    order = turns(log, 4)
    assert order[:3] == ["blocking", "gapless", "interval"]
    rounds = [tuple(order[n : n + 3]) for n in range(3, len(order), 3)]
    assert len(rounds) == 8
    assert all(sorted(found) == ["blocking", "gapless", "interval"] for found in rounds)
    assert len(set(rounds)) > 1
    assert [found.plan for found in result.plans] == ["blocking", "gapless", "interval"]
    assert [len(found.rounds) for found in result.plans] == [8, 8, 8]
    assert result.notes == ()


def test_every_plan_sees_the_same_batches_in_each_round():
    """Also from a loader that shuffles, whose order goes on from round to round."""
    log = []

    run_bench(small(log, shuffle=True), ask(steps=3))

    seen = {name: [batch for plan, batch in log if plan == name] for name, _ in log}
    assert seen["blocking"] == seen["gapless"] == seen["interval"]
    assert len(set(map(tuple, (seen["gapless"][n : n + 3] for n in range(0, 12, 3))))) > 1


def test_every_plan_starts_from_the_same_weights():
    """Which follow from the seed."""
    weights = {}

    def make(device, plan):
        workload = small()(device, plan)
        weights[plan.name] = workload.model.weight.tolist()
        return workload

    run_bench(make, ask(["blocking", "gapless"], seed=3))
    run_bench(make, ask(["interval"], seed=4))

    assert weights["blocking"] == weights["gapless"] != weights["interval"]


def test_short_batches_are_gone_through_again_and_counted():
    """Ten steps of four batches are three epochs, each with a wait of its own at its end."""
    result = run_bench(small(), ask(["gapless"], steps=10))

    (measured,) = result.plans
    found = measured.rounds[0]
    assert (found.steps, found.epochs, found.weight) == (10, 3, 30.0)
    assert {reason: total.count for reason, total in found.waits.by_reason.items()} == {
        "epoch_end": 3
    }


def test_progress_says_what_is_under_way():
    """Warm-up by plan, then rounds, then the rest."""
    seen = []

    run_bench(small(), ask(), on_progress=lambda *call: seen.append(call))

    assert seen[:3] == [
        ("warm-up of blocking", 0, 3),
        ("warm-up of gapless", 1, 3),
        ("warm-up of interval", 2, 3),
    ]
    assert ("round 2 of 3", 1, 3) in seen
    assert Counter(title for title, _, _ in seen)["round 3 of 3"] == 3


def test_a_time_limit_ends_rounds_and_says_so():
    """One round is always taken."""
    result = run_bench(small(), ask(seconds=0.0))

    assert [len(found.rounds) for found in result.plans] == [1, 1, 1]
    assert result.notes == ("Time allowed 1 of 3 rounds.",)


def test_without_room_for_all_plans_each_is_timed_by_itself(monkeypatch):
    """A device that is full after the first: rounds no longer take turns, and a note says so."""
    log = []
    monkeypatch.setattr(CPU, "free_memory_bytes", lambda: 100)
    monkeypatch.setattr(CPU, "reserved_memory_bytes", iter(range(0, 10**6, 80)).__next__)

    result = run_bench(small(log), ask())

    # One warm-up for nothing, then a warm-up and three rounds for each.
    assert turns(log, 4) == ["blocking"] * 5 + ["gapless"] * 4 + ["interval"] * 4
    assert [found.plan for found in result.plans] == ["blocking", "gapless", "interval"]
    assert "no room for all plans at once" in result.notes[0]


@pytest.mark.parametrize("has_room", [True, False])
def test_the_report_says_whether_plans_took_turns(monkeypatch, has_room):
    """Above the note that says why they did not."""
    if not has_room:
        monkeypatch.setattr(CPU, "free_memory_bytes", lambda: 100)
        monkeypatch.setattr(CPU, "reserved_memory_bytes", iter(range(0, 10**6, 80)).__next__)

    report = run_comparison(small_for_any, ask(), name="small")

    text = comparison_text(report)
    assert ("3 rounds of 4 steps, plans in turns;" in text) is has_room
    assert ("3 rounds of 4 steps, each plan by itself;" in text) is not has_room
    assert ("no room for all plans at once" in text) is not has_room


def test_running_out_of_memory_side_by_side_is_not_the_end():
    """What the estimate did not see; alone, each plan has its room."""
    alive = []

    def make(device, plan):
        alive.append(plan.name)
        if len(alive) == 2:
            raise torch.OutOfMemoryError("no memory")
        return small()(device, plan)

    result = run_bench(make, ask())

    assert [len(found.rounds) for found in result.plans] == [3, 3, 3]
    assert "no room" in result.notes[0]


def test_a_single_plan_that_does_not_fit_is_an_error():
    """There is nothing left to make smaller."""

    def make(device, plan):
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        run_bench(make, ask(["gapless"]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"plans": []}, "`plans` must name at least one plan"),
        ({"plans": ["fast"]}, "unknown plan 'fast'"),
        ({"plans": ["gapless", "events", "gapless"]}, "`plans` names gapless more than once"),
        ({"steps": 0}, "`steps` must be at least 1, but is 0"),
        ({"rounds": 0}, "`rounds` must be at least 1"),
        ({"warmup_rounds": 0}, "`warmup_rounds` must be at least 1, but is 0"),
        ({"verify_steps": -1}, "`verify_steps` must be at least 0, but is -1"),
    ],
)
def test_settings_that_cannot_be(changed, message):
    """The setting is named with what it may be."""
    with pytest.raises(UserError, match=message):
        ask(**changed)


def test_memory_is_a_plans_own_although_others_are_there():
    """The peak of a round is counted above what was held before, and others are left out."""
    held = {"now": 1000, "peak": 0}

    class Counting:
        def __init__(self, device):
            self.device = device

        def __getattr__(self, name):
            return getattr(self.device, name)

        def reset_peak_memory(self):
            held["peak"] = held["now"]

        def peak_memory_bytes(self):
            return held["peak"]

    def hold(num_bytes, *, peak):
        held["now"] += num_bytes
        held["peak"] = max(held["peak"], held["now"] + peak)

    def make(device, plan):
        hold(100, peak=30)
        workload = small()(device, plan)

        def step(batch):
            hold(0, peak=70)
            return workload.step(batch)

        return Workload(
            model=workload.model,
            optimizer=workload.optimizer,
            batches=workload.batches,
            step=step,
        )

    one = Entrant(
        get_plan("gapless"), make=make, settings=RunSettings(device=Counting(CPU)), steps=4
    )
    one.prepare(rounds=1)
    assert one.peak_memory_bytes == 170

    hold(5000, peak=0)
    one.take_round()
    one.close()

    assert one.peak_memory_bytes == 170


class Accelerator:
    """The CPU, said to work beside the host: plans capture, and figures of a device are asked for."""

    is_accelerator = True

    def __getattr__(self, name):
        return getattr(CPU, name)

    def needs_copy(self, tensor):
        return tensor.device.type != "cpu"

    def capture(self, work, *, like=None):
        work()
        return CPU.capture(work)


def noting_loads(found):
    """Return a workload whose loader shuffles, and notes under its plan what it loads."""

    def make(device, plan):
        workload = small(shuffle=True)(device, plan)
        seen = found.setdefault(plan.name, [])
        loader = workload.batches
        loader.collate_fn = lambda items: seen.append(float(items[0][0])) or torch.stack(items)
        return workload

    return make


def test_a_plan_that_captures_does_so_in_the_warm_up_and_sees_the_same_batches():
    """One graph for the one shape, none in a timed round, and a loader that is not ahead."""
    loads = {}
    result = run_bench(
        noting_loads(loads), ask(["gapless", "captured"], steps=3, device=Accelerator())
    )

    gapless, captured = result.plans
    assert (gapless.capture, captured.capture["num_graphs"]) == (None, 1)
    # One round of warm-up and three that count; a CPU has no trace behind them.
    assert captured.capture["num_replays"] == 4 * 3
    assert [found.num_graphs for found in captured.rounds] == [0, 0, 0]
    assert loads["gapless"] == loads["captured"]
    utilisation, kernels = result.notes
    assert "NVML" in utilisation
    assert "no kernel" in kernels


def bench_on_a_simulated_gpu(make, plans, **changed):
    with SimulatedDevice(scheduler="asap", durations={"kernel": 0.1, "launch": 0.2}) as device:
        return run_bench(make, ask(plans, device=device, rounds=2, **changed))


def is_undecided(result):
    return any("auto had not decided when the rounds began" in note for note in result.notes)


def test_auto_has_decided_before_it_is_timed():
    """One round of warm-up is too short for that, so it takes more; others take what was asked."""
    log = []

    result = bench_on_a_simulated_gpu(small(log), ["gapless", "auto"])

    auto = result.plans[1]
    assert auto.diagnosis is not None
    assert not is_undecided(result)
    # Nothing of the trial is left for the rounds that count.
    assert [found.num_graphs for found in auto.rounds] == [0, 0]
    assert Counter(plan for plan, _ in log)["gapless"] == 3 * 4


def test_all_plans_see_the_same_batches_after_a_warm_up_of_auto():
    """Although its loader that shuffles has been gone through more often by then."""
    given = {}
    bench_on_a_simulated_gpu(noting_loads(given), ["gapless", "auto"], steps=3)

    assert given["gapless"] == given["auto"]
    assert len(given["auto"]) > 4 * 3


def test_auto_that_never_decides_is_timed_with_a_note(monkeypatch):
    """There is a limit of steps: two rounds of warm-up reach it, where one was asked for."""
    given = []
    monkeypatch.setattr(TrainLoop, "diagnosis", None)
    monkeypatch.setattr(entrants, "_MOST_WARM_UP_STEPS", 7)

    def make(device, plan):
        workload = small()(device, plan)
        loader = workload.batches
        loader.collate_fn = lambda items: given.append(items) or torch.stack(items)
        return workload

    result = bench_on_a_simulated_gpu(make, ["auto"])

    # The pass that builds, two rounds of warm-up, and two that count.
    assert len(given) == (1 + 2 + 2) * 4
    assert is_undecided(result)


def test_a_cpu_has_nothing_for_auto_to_decide():
    """Its warm-up is as long as asked for."""
    log = []

    result = run_bench(small(log), ask(["auto"]))

    assert len(log) == 4 * 4
    assert not is_undecided(result)


# --- loaders with workers ---


STARTS_SECONDS = 0.4


class SlowStart(torch.utils.data.Dataset):
    """Rows whose first one in a process is late, as if starting that process took so long."""

    def __init__(self):
        self.is_late = True

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.is_late:
            time.sleep(STARTS_SECONDS)
            self.is_late = False
        return torch.full((4,), float(index))


def with_workers(seen=None, **options):
    """Return a function that builds the tiny workload with batches from worker processes."""

    def make(device, plan):
        workload = small()(device, plan)

        def step(batch):
            if seen is not None:
                seen.append(len(multiprocessing.active_children()))
            return workload.step(batch)

        loader = torch.utils.data.DataLoader(SlowStart(), num_workers=1, **options)
        return replace(workload, batches=loader, step=step)

    return make


def test_starting_workers_is_no_part_of_a_step():
    """Each epoch starts one anew, which took that long; the steps of the round say nothing of it."""
    seen = []

    result = run_bench(with_workers(seen), ask(["gapless"], rounds=1, steps=12))

    (found,) = result.plans[0].rounds
    least_ms = 2 * 1000.0 * STARTS_SECONDS
    assert (found.steps, found.epochs) == (12, 2)
    assert found.start_ms >= least_ms
    assert found.elapsed_ms >= found.start_ms + found.wall_ms
    # What is left has no share of the start: each wait for a worker's start is longer than this.
    assert found.data_wait_ms <= found.wall_ms < found.elapsed_ms - least_ms
    # Workers live until the last step of their epoch, and are gone after the round.
    assert min(seen) == 1
    assert multiprocessing.active_children() == []
    assert "starts its workers anew" in result.notes[0]


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"num_workers": 0}])
def test_other_loaders_are_timed_as_they_are(options):
    """Persistent workers start once, in the warm-up; without any, the first batch is like others."""

    def make(device, plan):
        loader = torch.utils.data.DataLoader(SlowStart(), **{"num_workers": 1, **options})
        return replace(small()(device, plan), batches=loader)

    result = run_bench(make, ask(["gapless"], rounds=1))

    assert result.plans[0].rounds[0].start_ms == 0.0
    assert result.notes == ()
    assert multiprocessing.active_children() == []


def test_a_loader_that_all_plans_share_keeps_its_workers_while_it_is_needed():
    """One made outside the function, with workers that it keeps from epoch to epoch."""
    loader = torch.utils.data.DataLoader(SlowStart(), num_workers=1, persistent_workers=True)
    log = []

    def make(device, plan):
        return replace(small(log)(device, plan), batches=loader)

    for _ in range(2):
        result = run_bench(make, ask(["blocking", "gapless"], rounds=2, steps=9))
        assert [len(plan.rounds) for plan in result.plans] == [2, 2]

    assert multiprocessing.active_children() == []


def test_workers_are_gone_after_a_step_that_fails():
    """Although the error is held, and with it the frames of the epoch."""

    def make(device, plan):
        def step(batch):
            raise ZeroDivisionError

        return replace(with_workers()(device, plan), step=step)

    with pytest.raises(ZeroDivisionError) as caught:
        run_bench(make, ask(["gapless"]))

    assert caught.value is not None
    assert multiprocessing.active_children() == []


# --- rows and the whole ---


def test_a_row_is_what_the_plan_promises():
    """Waits a step and by reason, and the speed in what the workload counts."""
    measured = {
        found.plan: found for found in run_bench(small(unit="images"), ask(steps=20)).plans
    }

    rows = {
        plan: make_row(found, identical=True, is_accelerator=False)
        for plan, found in measured.items()
    }

    assert rows["blocking"].waits_per_step == 2.0
    assert rows["interval"].waits_per_step == pytest.approx(0.25)
    assert rows["gapless"].waits_by_reason["epoch_end"]["count"] == pytest.approx(0.25)
    row, rounds = rows["gapless"], measured["gapless"].rounds
    assert row.steps_per_epoch == 4.0
    assert sorted(row.ms_per_step.rounds) == sorted(found.wall_ms / 20 for found in rounds)
    assert row.throughput == pytest.approx(3000.0 / row.ms_per_step.median)
    assert (row.gap_share, row.nvml_percent, row.peak_memory_bytes) == (None, None, None)


def test_a_row_without_a_unit_counts_steps():
    """Weights that nobody named are no speed."""
    (found,) = run_bench(small(), ask(["gapless"])).plans

    row = make_row(found, identical=None, is_accelerator=False)

    assert row.throughput == pytest.approx(1000.0 / row.ms_per_step.median)


def test_compiling_is_timed_before_the_rounds():
    """Nothing is compiled in a workload as written; what dynamo does in the body counts."""
    assert run_bench(small(), ask(["gapless"])).compile_seconds == 0.0

    with CompileClock() as clock:
        torch.compile(lambda x: x + 1.0, backend="eager")(torch.ones(2))
    seconds = clock.seconds
    torch.compile(lambda x: x + 2.0, backend="eager")(torch.ones(2))

    assert 0.0 < seconds == clock.seconds


def test_device_figures_are_a_step_and_the_gap_is_the_rest():
    """A trace of eight steps beside rounds without one."""
    (found,) = run_bench(small(), ask(["gapless"])).plans
    wall_ms = make_row(found, identical=None, is_accelerator=False).ms_per_step.median
    found.trace = KernelTrace(
        num_kernels=800, busy_ms=2.0 * wall_ms, kernel_ms=2.5 * wall_ms, span_ms=4.0
    )
    found.trace_steps = 8
    found.capture = {"seconds": 1.5, "num_graphs": 2, "refusal": None}

    row = make_row(found, identical=None, is_accelerator=True)

    assert (row.kernels_per_step, row.capture_seconds, row.compile_seconds) == (100.0, 1.5, None)
    assert (row.gap_share, row.busy_share) == (pytest.approx(0.75), pytest.approx(0.25))
    assert row.overlap_share == pytest.approx(0.2)


def test_every_plan_goes_through_the_whole_comparison():
    """All plans of the package, bits and times, on a CPU."""
    report = run_comparison(small_for_any, ask(PLANS, rounds=1, verify_steps=6), name="small")

    found = report.verification.verdicts
    assert all(verdict.holds for verdict in found)
    # Three batches in two passes, because with a GPU each shape has to come again.
    assert {tuple(verdict.ours.passes) for verdict in found} == {(3, 3)}
    assert [row.plan for row in report.rows] == list(PLANS)
    assert all(row.identical for row in report.rows)
    assert report.reproducible
    assert report.holds
    assert (report.recommendation.plan, report.unit) == ("gapless", "steps")


def test_bits_of_replays_are_compared_where_a_device_captures():
    """Two batches in six passes: two steps as written, the others replays, and the text says so."""
    with SimulatedDevice(scheduler="asap") as device:
        asked = ask(["gapless", "captured"], device=device, rounds=1, verify_steps=12)
        verification = run_comparison(small_for_any, asked, name="small").verification

    itself, gapless, captured = verification.verdicts
    assert itself.is_identical
    assert (gapless.ours.num_replays, captured.ours.num_replays) == (0, 10)
    assert captured.ours.passes == [2] * 6
    assert verdict_lines(captured)[0].endswith("x 12 steps, 10 of them replays)")
    assert "replays" not in verdict_lines(gapless)[0]


# --- instruments ---


def test_processor_time_holds_that_of_children():
    """Of one that runs, and of one that has ended."""
    start, own = cpu_seconds(), process_time()
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)"
    subprocess.run([sys.executable, "-c", spin], check=True, capture_output=True)
    ended = cpu_seconds() - start - (process_time() - own)
    ready, leave = multiprocessing.Event(), multiprocessing.Event()
    child = multiprocessing.Process(target=_spin, args=(ready, leave))
    start, own = cpu_seconds(), process_time()
    child.start()
    ready.wait()
    running = cpu_seconds() - start - (process_time() - own)
    leave.set()
    child.join()

    assert ended >= 0.15
    assert running >= 0.15


def test_processor_time_is_not_counted_in_ticks():
    """A round of two milliseconds would have used none, or five times as much."""
    own = process_time()
    start = cpu_seconds()
    while process_time() - own < 0.003:
        pass
    found = cpu_seconds() - start

    assert 0.0 < found <= process_time() - own


def test_processor_time_is_over_all_rounds_and_unknown_if_they_are_short():
    """Half a core in rounds of 150 ms; one of them alone is too short for a system of ticks."""
    (measured,) = run_bench(small(), ask(["gapless"], rounds=1)).plans
    one = replace(measured.rounds[0], elapsed_ms=150.0, cpu_seconds=0.0)
    other = replace(one, cpu_seconds=0.15)

    def percent(*rounds):
        row = make_row(replace(measured, rounds=rounds), identical=None, is_accelerator=False)
        return row.host_cpu_percent

    assert percent(one, other) == pytest.approx(50.0)
    assert percent(other) is None


def _spin(ready, leave):
    start = process_time()
    while process_time() - start < 0.25:
        pass
    ready.set()
    leave.wait()


def event(start, end, cat="kernel"):
    return {"ph": "X", "cat": cat, "ts": start, "dur": end - start}


def test_kernels_side_by_side_count_once():
    """Busy is the union, and the sum shows the overlap."""
    spans = [(4000, 6000), (0, 2000), (1000, 3000), (1500, 1600), (2500, 2800)]

    found = summarise([event(*span) for span in spans])

    assert found == KernelTrace(num_kernels=5, busy_ms=5.0, kernel_ms=6.4, span_ms=6.0)


def test_fills_are_busy_but_no_kernels():
    """A trace without anything says nothing."""
    found = summarise([event(0, 1000), event(1000, 2000, "gpu_memset")])

    assert (found.num_kernels, found.busy_ms) == (1, 2.0)
    assert summarise([]) is None


def test_a_cpu_has_no_trace_and_no_driver():
    """Nothing is run for a trace that cannot be."""
    assert CPU.trace_kernels(lambda: pytest.fail("was run")) is None
    with pytest.raises(DeviceError, match=r"cpu.*NVML"):
        CPU.open_utilisation_meter()


def test_a_sampler_reads_until_its_body_ends_and_skips_the_start():
    """What was read before belongs to what ran before; an error ends the reading alone."""
    start, times = perf_counter(), []

    def read():
        times.append(perf_counter() - start)
        if len(times) == 5:
            raise DeviceError("gone")
        return 10.0 * len(times)

    with Sampler(read, period_seconds=0.001, skip_seconds=0.05) as sampler:
        while len(times) < 5:
            pass

    assert min(times) >= 0.05
    assert sampler.values == [10.0, 20.0, 30.0, 40.0]
    assert sampler.mean == 25.0
    with Sampler(read, skip_seconds=60.0) as nothing:
        pass
    assert nothing.mean is None
