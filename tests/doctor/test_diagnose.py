"""From what was noted to findings with times, a verdict and a timeline."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from doctor.simulated_trace import AUTOGRAD, MAIN, step_ms, watched
from gapless.doctor.diagnose.diagnosis import diagnose
from gapless.doctor.diagnose.watched_run import WatchedRun
from gapless.doctor.seen_waits import SeenWait
from gapless.records.finding import Site


def planted(exposed, *, waits=True, device_us=10_000.0):
    def program(machine):
        for _ in range(20):
            machine.launch(device_us / 20)
        if waits:
            with machine.seeing("item", "Tensor.item", 12):
                machine.item()
        machine.host(device_us * exposed / (1 - exposed))

    return program


@pytest.mark.parametrize("cost_us", [0.0, 3.0, 9.0])
@pytest.mark.parametrize("exposed", [0.1, 0.3, 0.6])
def test_a_planted_wait_is_reported_with_what_it_exposes_and_gains(exposed, cost_us):
    """What removing it saves, within a tenth or 2 % of the step, with its line and its count."""
    plain = step_ms(planted(exposed))
    saved = plain - step_ms(planted(exposed, waits=False))

    (finding,) = diagnose(watched(planted(exposed), event_cost_us=cost_us)).findings

    assert (str(finding.site), finding.call, finding.code) == (
        "train.py:12",
        "Tensor.item",
        "GAP001",
    )
    assert finding.per_step == pytest.approx(1)
    assert finding.gain_ms == pytest.approx(saved, rel=0.1, abs=0.02 * plain)
    assert finding.share == pytest.approx(exposed, abs=0.02)
    assert finding.waited_ms == pytest.approx(10, rel=0.05)


def noisy(exposed, *, seed, waits=True):
    draw = random.Random(seed)

    def program(machine):
        machine.return_us = draw.uniform(5, 25)
        for _ in range(100):
            with machine.operation("aten::mm"):
                machine.host(draw.uniform(5, 25))
                machine.launch(100.0 * draw.uniform(0.97, 1.03))
        if waits:
            with machine.seeing("item", "Tensor.item", 12):
                machine.item()
        machine.host(10_000.0 * exposed / (1 - exposed) * draw.uniform(0.95, 1.1))

    return program


@pytest.mark.parametrize(("exposed", "seed"), [(0.0, 1), (0.3, 2), (0.6, 2)])
def test_noise_of_the_host_and_the_device_leaves_the_gain_right(exposed, seed):
    """Windows differ by chance; the profiler's cost must not be read out of that."""
    plain = step_ms(noisy(exposed, seed=seed))
    saved = plain - step_ms(noisy(exposed, seed=seed, waits=False))
    found = diagnose(watched(noisy(exposed, seed=seed), event_cost_us=1.4)).findings

    finding = next(one for one in found if one.code == "GAP001")

    assert finding.gain_ms == pytest.approx(saved, rel=0.1, abs=0.02 * plain)
    if not exposed:
        assert finding.share <= 0.01


def test_a_wait_that_had_begun_before_it_was_watched_is_of_the_same_finding():
    """Torch's warning tells of it by the name of the method alone."""
    wait = SeenWait(
        cause="item",
        call="Tensor.item",
        site=Site(path="train.py", line=3),
        thread="main",
        step=1,
        start_ns=0,
        end_ns=1_000_000,
    )
    begun_before = replace(wait, call="item", step=0, end_ns=None)
    elsewhere = replace(begun_before, site=Site(path="train.py", line=4))

    found = diagnose(
        WatchedRun(
            has_device=True,
            step_ms=(5.0, 5.0),
            seen=(begun_before, wait, elsewhere),
            num_seen_steps=2,
        )
    ).findings

    assert [(str(one.site), one.call, one.per_step) for one in found] == [
        ("train.py:3", "Tensor.item", 1.0),
        ("train.py:4", "item", 0.5),
    ]


def of_many_operations(exposed, *, waits=True):
    """The device bounds the step, behind whose work most of the host's is hidden."""

    def program(machine):
        for _ in range(100):
            with machine.operation("aten::mm"):
                machine.host(5.0)
                machine.launch(100.0)
        if waits:
            with machine.seeing("item", "Tensor.item", 12):
                machine.item()
        machine.host(10_000.0 * exposed / (1 - exposed))

    return program


@pytest.mark.parametrize(
    ("make", "exposed", "noted"),
    [
        # What an event costs is measured by the host's own time, which hidden work does not blur.
        (of_many_operations, 0.0, {"event_cost_us": 8.0}),
        (of_many_operations, 0.1, {"event_cost_us": 8.0}),
        (of_many_operations, 0.6, {"event_cost_us": 8.0}),
        # A plain step has no room for what the profiler adds behind a wait.
        (planted, 0.1, {"timed_return_us": 700.0}),
        # Plain steps that are shorter than the device's work tell nothing of how long steps take.
        (planted, 0.3, {"step_ms": (7.0, 7.0)}),
    ],
)
def test_what_a_profiler_and_plain_steps_have_of_their_own_leaves_the_gain_right(
    make, exposed, noted
):
    """It is what removing the wait saves, whatever was recorded beside it."""
    plain = step_ms(make(exposed))
    saved = plain - step_ms(make(exposed, waits=False))

    (finding,) = diagnose(watched(make(exposed), **noted)).findings

    assert finding.gain_ms == pytest.approx(saved, rel=0.05, abs=0.01 * plain)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["asyncio_0", "asyncio_1"], "asyncio"),
        (["ThreadPoolExecutor-0_0", "ThreadPoolExecutor-0_1"], "ThreadPoolExecutor-0"),
        (["Thread-7 (log)", "Thread-8 (log)"], "Thread (log)"),
        (["main", "main"], "main"),
    ],
)
def test_a_line_that_waits_on_several_threads_of_a_kind_is_one_finding(names, shown):
    """A pool hands work to any of its threads, and a loop may start one in each step."""
    seen = [
        SeenWait(
            cause="item",
            call="Tensor.item",
            site=Site(path="train.py", line=3),
            thread=name,
            step=step,
            start_ns=0,
            end_ns=1_000_000,
        )
        for step, name in enumerate(names)
    ]

    (finding,) = diagnose(
        WatchedRun(has_device=True, step_ms=(5.0, 5.0), seen=tuple(seen), num_seen_steps=2)
    ).findings

    assert (finding.thread, finding.per_step, finding.waited_ms) == (shown, 1.0, 1.0)


def test_a_wait_that_exposes_nothing_is_said_not_to_matter():
    """The device has work again at once: at most 1 % of the step, and the verdict says it."""
    diagnosis = diagnose(watched(planted(0.0)))

    assert diagnosis.findings[0].share <= 0.01
    assert diagnosis.verdict.startswith(
        "DEVICE-BOUND: removing these waits will not help: the device is busy 99"
    )


def test_a_wait_for_the_step_before_costs_nothing_while_the_host_is_faster():
    """The device still has this step's work when the host returns."""

    def program(machine):
        before = machine.free.get(7)
        machine.launch(10_000.0)
        if before is not None:
            with machine.seeing("event", "Event.synchronize", 9):
                machine.wait("event", done=before)
        machine.host(3000.0)

    (finding,) = diagnose(watched(program)).findings

    assert finding.waited_ms > 1.0
    assert finding.exposed_ms == pytest.approx(0.0, abs=0.05)
    assert finding.gain_ms == pytest.approx(0.0, abs=0.05)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("host"), st.floats(0, 3000)),
        st.tuples(st.just("launch"), st.floats(2, 3000)),
        st.tuples(st.just("loader"), st.floats(0, 3000)),
        st.tuples(st.just("wait"), st.sampled_from(["stream", "device"])),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(ACTS)
def test_no_gain_is_negative_or_above_what_is_exposed(acts):
    """And busy and idle time make up the step, whatever the loop does."""

    def program(machine):
        machine.launch(50.0)
        for line, (kind, value) in enumerate(acts, 1):
            if kind == "host":
                machine.host(value)
            elif kind == "launch":
                machine.launch(value)
            elif kind == "loader":
                with machine.seeing("loader", "next", line, is_marked=False):
                    machine.host(value)
            else:
                with machine.seeing("device", "synchronize", line):
                    machine.wait(value)

    diagnosis = diagnose(watched(program))

    for finding in diagnosis.findings:
        if finding.gain_ms is not None:
            assert 0.0 <= finding.gain_ms <= finding.exposed_ms
    steps = diagnosis.steps
    assert steps.busy_ms + steps.idle_ms == pytest.approx(
        sum(steps.wall_ms.rounds) / len(steps.wall_ms.rounds), rel=0.01
    )


def test_of_two_waits_in_a_row_neither_gains_alone():
    """The idle time only moves on to the other; without all of them it is gone."""

    def program(machine):
        machine.launch(8000.0)
        with machine.seeing("item", "Tensor.item", 5):
            machine.item()
        with machine.seeing("float", "float", 6):
            machine.item()
        machine.host(4000.0)

    diagnosis = diagnose(watched(program))

    first, second = diagnosis.findings
    assert first.site.line == 6
    assert first.exposed_ms == pytest.approx(4.0, rel=0.05)
    assert first.gain_ms == pytest.approx(0.0, abs=0.05)
    assert second.gain_ms == pytest.approx(0.0, abs=0.05)
    assert "without all waits a step is predicted to take 8.0 ms and not 12." in diagnosis.verdict


def test_a_slow_loader_comes_before_the_wait_in_front_of_it():
    """The loader's own time is charged to it; the wait gains what the device's work could hide."""

    def program(machine):
        with machine.seeing("loader", "next", 3, is_marked=False):
            machine.host(30_000.0)
        machine.launch(10_000.0)
        with machine.seeing("item", "Tensor.item", 5):
            machine.item()

    diagnosis = diagnose(watched(program))

    assert [finding.code for finding in diagnosis.findings] == ["GAP016", "GAP001"]
    assert diagnosis.findings[0].gain_ms == pytest.approx(30, rel=0.02)
    assert diagnosis.findings[1].gain_ms == pytest.approx(10, rel=0.02)
    assert diagnosis.findings[1].exposed_ms >= diagnosis.findings[1].gain_ms
    assert "waits for batches" in diagnosis.verdict


def test_a_wait_for_other_processes_is_charged_like_the_loader():
    """It has no blocking call of the runtime, only a beginning and an end."""

    def program(machine):
        machine.launch(5000.0)
        with machine.seeing("item", "Tensor.item", 4):
            machine.item()
        with machine.seeing("collective", "Work.wait", 6):
            machine.host(8000.0)

    found = {finding.code: finding for finding in diagnose(watched(program)).findings}

    assert found["GAP020"].exposed_ms == pytest.approx(8, rel=0.02)
    assert found["GAP020"].gain_ms == pytest.approx(8, rel=0.02)
    assert found["GAP001"].gain_ms == pytest.approx(5, rel=0.02)


@pytest.mark.parametrize(
    ("cause", "call", "says"),
    [
        ("gc", "gc.collect", "garbage collector takes 19.0 ms of the 20.0 ms"),
        ("collective", "Work.wait", "waits for other processes for 19.0 ms of the 20.0 ms"),
    ],
)
def test_the_verdict_names_what_takes_most(cause, call, says):
    """Also where it is neither a wait for the device nor the loader."""

    def program(machine):
        machine.launch(1000.0)
        with machine.seeing(cause, call, 6):
            machine.host(20_000.0)

    assert says in diagnose(watched(program)).verdict


def test_a_device_that_something_else_has_is_not_called_idle():
    """Its work was queued in time, and the device took it late."""

    def program(machine):
        machine.launch(2_000.0)
        machine.free[7] += 3_000.0
        machine.launch(2_000.0)
        machine.item()

    assert diagnose(watched(program)).verdict == (
        "DEVICE-BOUND: something else has the device, such as another process: work that was queued "
        "in time waits for it for 3.0 ms of the 7.0 ms that a step takes."
    )


def test_a_step_of_many_short_launches_is_launch_bound():
    """No wait is to blame, and capture is what helps."""

    def program(machine):
        for _ in range(150):
            machine.host(10.0)
            machine.launch(3.0)

    diagnosis = diagnose(watched(program))

    (finding,) = diagnosis.findings
    assert finding.code == "GAP017"
    assert finding.per_step == pytest.approx(150)
    assert "capturing the step may gain more" in diagnosis.verdict
    assert diagnosis.steps.num_launches == pytest.approx(150)
    assert {(gap.cause, gap.finding) for gap in diagnosis.timeline.gaps} == {("launch", 0)}


def in_backward(machine, *, name, sequence):
    with machine.operation("aten::mul", **{"Sequence number": sequence}):
        machine.launch(100.0)
    machine.launch(3000.0)
    machine.thread = AUTOGRAD
    node = f"autograd::engine::evaluate_function: {name}"
    with machine.operation(node, **{"Sequence number": sequence}):
        machine.host(1.0)
        with machine.operation("aten::nonzero"):
            machine.item()
    machine.host(1000.0)
    machine.thread = MAIN


def test_a_wait_of_a_backward_node_has_the_line_of_its_forward_operation():
    """The node's place among those of its name in the step leads to the line."""

    def program(machine):
        in_backward(machine, name="MulBackward0", sequence=10 * len(machine.steps))
        in_backward(machine, name="IndexBackward0", sequence=10 * len(machine.steps) + 1)

    line = Site(path="model.py", line=44)
    noted = watched(program, forward_lines={("IndexBackward0", 0): line})

    found = {finding.call: finding for finding in diagnose(noted).findings}

    known = found["IndexBackward0 (cudaStreamSynchronize)"]
    assert (known.forward, known.thread, known.code) == (line, "autograd", "GAP007")
    unknown = found["MulBackward0 (cudaStreamSynchronize)"]
    assert (unknown.site, unknown.code) == (None, "GAP021")


def test_a_blocking_call_that_nobody_saw_is_reported_by_its_name():
    """It has no line, but it is never dropped."""

    def program(machine):
        machine.launch(3000.0)
        machine.wait("device")

    diagnosis = diagnose(watched(program))

    (finding,) = diagnosis.findings
    assert (finding.code, finding.call, finding.site) == ("GAP021", "cudaDeviceSynchronize", None)
    assert diagnosis.notes == ("0 of 11 blocking calls of the recorded steps have a line.",)


def test_a_wait_within_an_optimizers_step_that_nobody_saw_belongs_to_that_step():
    """What is seen in it keeps its own line, and what comes behind it has none."""

    def program(machine):
        machine.launch(3000.0)
        with machine.optimizer_step("SparseAdam", 7):
            machine.wait()
            machine.launch(1000.0)
            with machine.seeing("item", "Tensor.item", 8):
                machine.item()
        machine.host(100.0)
        machine.launch(1000.0)
        machine.wait()

    found = {finding.call: finding for finding in diagnose(watched(program)).findings}

    assert found["SparseAdam.step"].site.line == 7
    assert found["SparseAdam.step"].per_step == pytest.approx(1.0)
    assert found["SparseAdam.step"].waited_ms == pytest.approx(3.0, rel=0.05)
    assert found["Tensor.item"].site.line == 8
    assert found["cudaStreamSynchronize"].site is None


def test_an_optimizers_step_without_a_wait_is_no_finding():
    """It only might have held one."""

    def program(machine):
        machine.launch(3000.0)
        with machine.optimizer_step("SGD", 7):
            machine.launch(10.0)
        with machine.seeing("item", "Tensor.item", 8):
            machine.item()

    assert [finding.site.line for finding in diagnose(watched(program)).findings] == [8]


def test_what_blocks_in_the_first_recorded_step_alone_is_not_reported():
    """The profiler itself may have caused it."""

    def program(machine):
        machine.launch(3000.0)
        if len(machine.steps) == 1:
            machine.wait("device")
        with machine.seeing("item", "Tensor.item", 8):
            machine.item()

    assert [finding.code for finding in diagnose(watched(program)).findings] == ["GAP001"]


def test_a_call_that_did_not_block_in_the_trace_is_no_finding():
    """The trace is the truth about a line that only looked as if it waited."""

    def program(machine):
        machine.launch(3000.0)
        with machine.seeing("copy", "Tensor.to", 7):
            machine.launch(5.0, kind="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)")
        with machine.seeing("item", "Tensor.item", 8):
            machine.item()

    assert [finding.site.line for finding in diagnose(watched(program)).findings] == [8]


def test_a_wait_that_torch_tells_of_when_it_is_over_is_joined_as_well():
    """Its mark comes behind the blocking call."""

    def program(machine):
        machine.launch(3000.0)
        with machine.seeing("shape", "Tensor.nonzero", 9, is_after=True):
            machine.item()

    (finding,) = diagnose(watched(program)).findings

    assert finding.site.line == 9
    assert finding.waited_ms == pytest.approx(3.0, rel=0.05)


def test_of_a_wait_of_which_only_the_beginning_was_seen_the_first_call_is_it():
    """A blocking call behind it is another wait."""

    def program(machine):
        machine.launch(3000.0)
        with machine.seeing("event", "Event.synchronize", 9):
            machine.item()
        machine.seen[-1] = replace(machine.seen[-1], end_ns=None)
        machine.launch(2000.0)
        machine.wait("device")

    found = {finding.call: finding for finding in diagnose(watched(program)).findings}

    assert found["Event.synchronize"].waited_ms == pytest.approx(3, rel=0.05)
    assert found["cudaDeviceSynchronize"].site is None


def test_without_a_trace_waits_have_their_own_durations_and_nothing_exposed():
    """Counts and times of the sites window are all that there is."""
    noted = watched(planted(0.3), trace=None, timed=())

    diagnosis = diagnose(noted)

    (finding,) = diagnosis.findings
    assert finding.exposed_ms is None
    assert finding.waited_ms == pytest.approx(10, rel=0.05)
    assert "without the profiler nobody knows" in diagnosis.verdict


@pytest.mark.parametrize("thread", ["main", "feeder"])
@pytest.mark.parametrize("late_ms", [0.4, 0.6, 0.9, 3.0])
def test_the_loader_keeps_up_where_no_finding_says_that_it_is_late(late_ms, thread):
    """The verdict and the findings have one threshold; a step here takes 10 ms."""
    seen = [
        SeenWait(
            cause="loader",
            call="next",
            site=Site(path="train.py", line=3),
            thread=thread,
            step=step,
            start_ns=0,
            end_ns=round(late_ms * 1e6),
        )
        for step in range(2)
    ]

    diagnosis = diagnose(
        WatchedRun(has_device=False, step_ms=(10.0, 10.0), seen=tuple(seen), num_seen_steps=2)
    )

    is_late = [finding.code for finding in diagnosis.findings] == ["GAP016"]
    assert is_late == (late_ms > 0.5)
    assert ("keeps up" in diagnosis.verdict) == (not is_late)
    is_bound = is_late and thread == "main" and late_ms >= 2.0
    assert diagnosis.verdict.startswith("LOADER-BOUND: batches take 3.0 ms of 10.0 ms") == is_bound
    assert diagnosis.verdict.startswith("CPU-BOUND: ") == (not is_bound)


def test_a_trace_that_cannot_be_read_costs_only_the_times():
    """Lines and counts are there all the same, and a note."""
    noted = watched(planted(0.3))
    broken = replace(noted, trace=replace(noted.trace, calls=(None,)))

    diagnosis = diagnose(broken)

    assert diagnosis.findings[0].site.line == 12
    assert diagnosis.findings[0].exposed_ms is None
    assert "the profiler's trace cannot be read" in diagnosis.notes[0]


def test_without_steps_it_says_so():
    """A script that ends early has no figures."""
    diagnosis = diagnose(watched(planted(0.3), trace=None, timed=(), seen=(), step_ms=()))

    assert diagnosis.verdict.startswith("No step was seen")


def test_the_parts_of_a_step_and_the_timeline_belong_together():
    """Busy and idle make up the step; gaps lead to the finding that exposed them."""
    diagnosis = diagnose(watched(planted(0.3)))

    steps, timeline = diagnosis.steps, diagnosis.timeline
    assert steps.busy_ms + steps.idle_ms == pytest.approx(steps.wall_ms.median, rel=0.01)
    assert steps.compute_ms < steps.busy_ms
    assert [lane.name for lane in timeline.lanes] == ["main thread", "stream 7"]
    longest = max(timeline.gaps, key=lambda gap: gap.end_us - gap.start_us)
    assert (longest.cause, longest.finding) == ("host wait", 0)
    assert len(timeline.step_starts_us) == 10


def test_kernels_in_which_nccl_waits_for_other_processes_have_a_time_of_their_own():
    """They are busy time of this device as well, whatever the others do meanwhile."""

    def program(machine):
        machine.launch(3_000.0)
        machine.launch(6_000.0, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)")
        machine.item()

    steps = diagnose(watched(program)).steps

    assert steps.collective_ms == pytest.approx(6.0, rel=0.05)
    assert steps.busy_ms == pytest.approx(9.0, rel=0.05)
    assert diagnose(watched(program, step_ms=(5.0,) * 20)).steps.collective_ms <= 5.0


def test_the_timeline_has_all_of_the_last_steps():
    """Of very many those that are played again, each kernel by itself."""

    def program(machine):
        for _ in range(500):
            machine.launch(8.0)
        with machine.seeing("item", "Tensor.item", 5):
            machine.item()

    timeline = diagnose(watched(program, num_steps=41)).timeline

    host, stream = timeline.lanes
    assert len(timeline.step_starts_us) == 29
    assert len(stream.spans) == 29 * 501
    assert sum(span.kind == "wait" for span in host.spans) == 29


@pytest.mark.parametrize(("num_shapes", "is_said"), [(1, False), (10, False), (11, True)])
def test_batches_of_ever_new_shapes_are_told_of(num_shapes, is_said):
    """A few sizes that come again are no trouble."""
    noted = replace(watched(lambda machine: machine.launch(3000.0)), num_batches=20)
    noted = replace(noted, num_batch_shapes=num_shapes)

    found = [one for one in diagnose(noted).findings if one.code == "GAP018"]

    assert bool(found) == is_said
    if is_said:
        assert "20 batches of loaders had 11 different shapes" in found[0].cause
