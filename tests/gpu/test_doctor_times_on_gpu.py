"""The doctor's times on a GPU: what the profiler's trace holds there, joined with lines and played again."""

import inspect
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from gapless.doctor.diagnose.diagnosis import diagnose
from gapless.doctor.diagnose.watched_run import WatchedRun
from gapless.doctor.lines.backward_lines import BackwardLinesPass
from gapless.doctor.lines.sites import SitesPass
from gapless.doctor.replay.player import play
from gapless.doctor.replay.recording import record
from gapless.doctor.trace import cupti
from gapless.doctor.trace.cupti import CUPTI_REMAINS
from gapless.doctor.trace.join import join
from gapless.doctor.trace.profiler import TimesPass


pytestmark = pytest.mark.gpu

NUM_STEPS = 12


def run_steps(step, passes, num_steps=NUM_STEPS):
    """Run steps under passes, which stop in the opposite order."""
    for one in passes:
        one.start()
    for number in range(num_steps):
        step()
        if number < num_steps - 1:
            for one in passes:
                one.next_step()
    for one in reversed(passes):
        one.stop()


def plain_ms(step, num_steps=40):
    """Return the times of steps with nothing installed."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begin))
    return tuple(times)


def long_run_ms(step, num_steps=60):
    """Return what a step takes when many follow each other."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / num_steps


def watch(step, **noted):
    """Return what the windows of a run note: plain, sites, times."""
    plain = plain_ms(step)
    sites = SitesPass()
    run_steps(step, [sites])
    times, marked = TimesPass(has_device=True), SitesPass(marks=True)
    run_steps(step, [times, marked])
    fields = {
        "has_device": True,
        "step_ms": plain,
        "seen": tuple(sites.waits),
        "num_seen_steps": NUM_STEPS,
        "timed": tuple(marked.waits),
        "trace": times.trace,
        "notes": tuple(times.notes),
    }
    return WatchedRun(**(fields | noted))


def line_of(text):
    """Return the number of the line of this file that ends with a text."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def spin(ms):
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass


@pytest.fixture(scope="module")
def cycles_per_ms():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    begin.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    end.synchronize()
    return 100_000_000 / begin.elapsed_time(end)


@pytest.mark.parametrize("exposed", [0.0, 0.1, 0.3, 0.6])
def test_a_planted_wait_is_reported_with_what_removing_it_saves(exposed, cycles_per_ms):
    """Within a tenth of it or 2 % of the step; 0 % exposed is at most 1 %."""
    x = torch.ones(1000, device="cuda")

    def step(waits=True):
        for _ in range(20):
            torch.cuda._sleep(int(cycles_per_ms / 2))
        if waits:
            x.sum().item()  # planted
        spin(10 * exposed / (1 - exposed))

    found = diagnose(watch(step))
    plain = long_run_ms(step)
    saved = plain - long_run_ms(lambda: step(waits=False))

    finding = next(
        one for one in found.findings if one.site and one.site.line == line_of("planted")
    )
    assert finding.per_step == pytest.approx(1, abs=0.01)
    assert finding.gain_ms == pytest.approx(saved, rel=0.1, abs=0.02 * plain)
    if exposed == 0:
        assert finding.share <= 0.01
        assert "removing these waits will not help" in found.verdict


def test_each_kind_of_wait_is_in_the_trace_and_has_its_line(cycles_per_ms):
    """Nothing that blocks is left without a line, and nothing harmless is a wait."""
    x = torch.ones(1 << 22, device="cuda")
    pageable, pinned = torch.ones(1 << 22), torch.ones(1 << 22).pin_memory()

    def step():
        torch.cuda._sleep(int(cycles_per_ms))
        x.sum().item()  # item
        torch.cuda._sleep(int(cycles_per_ms))
        torch.cuda.synchronize()  # device
        torch.cuda._sleep(int(cycles_per_ms))
        done = torch.cuda.Event()
        done.record()
        done.synchronize()  # event
        torch.cuda._sleep(int(cycles_per_ms))
        x.copy_(pageable, non_blocking=True)  # pageable
        torch.cuda._sleep(int(cycles_per_ms))
        x[x > 2]  # mask
        x.copy_(pinned, non_blocking=True)  # pinned

    found = diagnose(watch(step))

    lines = {one.site.line: one for one in found.findings if one.site}
    for name in ("item", "device", "event", "pageable", "mask"):
        finding = lines[line_of(name)]
        assert finding.waited_ms > 0.5, name
        assert finding.per_step == pytest.approx(1, abs=0.5), name
    assert line_of("pinned") not in lines
    assert "GAP021" not in {one.code for one in found.findings}


def test_a_wait_of_a_backward_node_has_its_forward_line():
    """Indexing by a mask on the device waits again in the backward pass."""
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    mask = torch.rand(256, 256, device="cuda") > 0.5

    def step():
        chosen = (weight * 2)[mask]  # forward
        chosen.sum().backward()
        weight.grad = None

    lines = BackwardLinesPass()
    run_steps(step, [lines], num_steps=3)
    noted = watch(step, forward_lines=lines.lines)
    in_nodes = [one for one in diagnose(noted).findings if one.thread == "autograd"]

    assert lines.lines["IndexBackward0", 0].line == line_of("forward")
    assert {one.forward.line for one in in_nodes if one.forward} <= {line_of("forward")}
    assert all(one.forward is not None for one in in_nodes)


def test_recorded_steps_played_as_they_were_take_as_long(cycles_per_ms):
    """With copies on a stream of their own that the work waits for."""
    side = torch.cuda.Stream()
    source = torch.ones(1 << 22).pin_memory()
    target = torch.empty(1 << 22, device="cuda")

    def step():
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            target.copy_(source, non_blocking=True)
        torch.cuda.default_stream().wait_stream(side)
        torch.cuda._sleep(int(2 * cycles_per_ms))
        target.sum().item()
        spin(1.0)

    noted = watch(step)
    waits = join(noted.trace, noted.timed).waits
    steps = noted.trace.steps
    recorded_ms = (steps[-1] - steps[1]) / (len(steps) - 2) / 1000

    assert play(record(noted.trace, waits)).step_ms == pytest.approx(recorded_ms, rel=0.05)


def test_a_graph_is_one_launch_and_all_of_it_is_busy_time():
    """Its kernels have the correlation of the call that replays it."""
    x = torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            x.mul_(1.0)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(50):
            x.mul_(1.0)

    def step():
        graph.replay()
        x.sum().item()

    steps = diagnose(watch(step)).steps

    assert steps.num_launches < 10
    assert steps.busy_ms > 0.0


def test_launch_bound_steps_are_told_from_waits():
    """Many short kernels and one read: capture helps, removing the read does not."""
    x = torch.ones(8, device="cuda")

    def step():
        for _ in range(300):
            x.add_(1.0)
        x.sum().item()

    found = diagnose(watch(step))

    assert "GAP017" in {one.code for one in found.findings}
    assert found.steps.num_launches > 300


@pytest.mark.parametrize("version", ["12.8", "13.0"])
def test_graphs_and_profiles_go_on_after_the_driver_library_is_let_go(version):
    """A graph from before is replayed, new ones are captured, and each profile sees all kernels.

    In a process of its own: where CUPTI had stayed, the first profile that lets go of it sees nothing.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        seen, remains = process.submit(profile_graphs, version).result()

    assert seen[0] > 0
    assert seen == [seen[0], 2 * seen[0], 3 * seen[0]]
    assert remains == [version == "12.8"] * 3


def profile_graphs(version):
    """Profile one, two and three graphs; return how much each saw, and whether CUPTI remained."""
    cupti.cuda_version = lambda: version
    square = torch.randn(64, 64, device="cuda")
    torch.mm(square, square)
    torch.cuda.synchronize()
    kept, seen, remains = [], [], []
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.mm(square, square)
        kept.append((graph, result))
        times = TimesPass(has_device=True)
        times.start()
        for one, _ in kept:
            one.replay()
        torch.cuda.synchronize()
        times.stop()
        seen.append(len(times.trace.works))
        remains.append(CUPTI_REMAINS in times.notes)

    torch.testing.assert_close(kept[0][1], square @ square)
    assert "TEARDOWN_CUPTI" not in os.environ
    return seen, remains
