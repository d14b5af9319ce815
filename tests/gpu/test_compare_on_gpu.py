"""`gapless compare` on one GPU: what only a device has, is measured and makes sense."""

from __future__ import annotations

import json
from dataclasses import replace
from time import perf_counter

import pytest
import torch

from gapless.cli.main import run_command
from gapless.compare.bench import run_bench
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.plans import PLANS


pytestmark = pytest.mark.gpu

DEVICE = find_device("cuda") if torch.cuda.is_available() else None


def many_layers(device, plan):
    """A step of many small kernels, which the host needs longer to launch than the GPU to run."""
    layers = [torch.nn.Linear(64, 64) for _ in range(40)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)

    def step(batch):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    batches = [torch.randn(32, 64) for _ in range(20)]
    return Workload(model=model, optimizer=optimizer, batches=batches, step=step)


def settings_of(*plans, **changed):
    numbers = {"steps": 20, "rounds": 3, "warmup_rounds": 3, "verify_steps": 0, **changed}
    return CompareSettings(
        run=RunSettings(device=DEVICE),
        rounds=Rounds(**numbers),
        plans=plans,
    )


def rows_of(make, *plans, **changed):
    result = run_bench(make, settings_of(*plans, **changed))
    return {row.plan: row for row in result.rows}, result.notes


def add(value, count):
    """Queue so many kernels."""
    for _ in range(count):
        value.add_(1.0)


def test_a_trace_counts_the_kernels_that_ran():
    """Five additions are five kernels; copies from and to the host are none."""
    value = torch.ones(2**20, device="cuda")
    host = torch.ones(2**20).pin_memory()
    add(value, 1)
    torch.cuda.synchronize()

    def work():
        value.copy_(host, non_blocking=True)
        add(value, 5)
        torch.cuda.synchronize()

    found = DEVICE.trace_kernels(work)

    assert found.num_kernels == 5
    # Torch's times are multiples of about a nanosecond.
    assert 0 < found.busy_ms <= found.kernel_ms + 2e-6 * found.num_kernels


def test_a_trace_sees_kernels_inside_a_graph():
    """A replay is one launch, and all kernels of the graph are there."""
    value = torch.ones(64, device="cuda")
    add(value, 1)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = DEVICE.capture(lambda _: add(value, 25))

        def replay():
            graph.replay()
            torch.cuda.synchronize()

        found = DEVICE.trace_kernels(replay)

    assert found.num_kernels == 25


def test_work_in_a_trace_lies_on_the_clock_of_the_host():
    """A kernel and a copy ran between the host's times before they were queued and after its wait."""
    value = torch.ones(2**24, device="cuda")
    host = torch.ones(2**24).pin_memory()
    add(value, 1)
    torch.cuda.synchronize()
    times = []

    def work():
        times.append(perf_counter() * 1e6)
        value.copy_(host, non_blocking=True)
        add(value, 3)
        torch.cuda.synchronize()
        times.append(perf_counter() * 1e6)

    (lane,) = DEVICE.trace_kernels(work).lanes
    # CUPTI's clock and the host's agree within some microseconds.
    first, last = times[0] - 50.0, times[1] + 50.0

    assert [span.kind for span in lane.spans] == ["copy", "kernel", "kernel", "kernel"]
    assert all(first < span.start_us < span.end_us < last for span in lane.spans)


def test_a_plan_that_waits_leaves_gaps_in_its_timeline():
    """Under `blocking` the host waits in every step, and its gaps are charged to that or to queueing."""
    settings = replace(settings_of("blocking", "gapless", steps=10, rounds=1), timelines=True)
    blocking, gapless = run_bench(many_layers, settings).timelines
    waits = [span for span in blocking.lanes[0].spans if span.kind == "wait"]

    assert len(waits) >= 10
    assert len(blocking.step_starts_us) == len(gapless.step_starts_us) == 10
    assert {gap.cause for gap in blocking.gaps} & {"host wait", "launch"}
    for timeline in (blocking, gapless):
        kernels = [span for lane in timeline.lanes if lane.is_device for span in lane.spans]
        assert kernels
        assert all(0.0 <= span.start_us <= timeline.end_us for span in kernels)


def test_memory_that_is_only_cached_goes_back():
    """What nobody holds is free for others afterwards, who may take it at once."""
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    before = DEVICE.reserved_memory_bytes()
    del block
    DEVICE.release_cached_memory()

    assert DEVICE.reserved_memory_bytes() <= before - 2**30
    assert 0 < DEVICE.free_memory_bytes() < DEVICE.total_memory_bytes()


def test_every_plan_has_all_figures_of_a_gpu():
    """A launch-bound step: replays run the same kernels with fewer launches, and gaps are seen."""
    rows, notes = rows_of(many_layers, *PLANS)

    for row in rows.values():
        assert row.kernels_per_step > 80
        assert 0 < row.busy_ms_per_step < row.ms_per_step.max
        assert 0.0 <= row.gap_share <= 1.0
        assert 0.0 <= row.meter_gap_share <= 1.0
        assert row.peak_memory_bytes > 0
        assert row.held_memory_bytes > 0
        assert row.nvml_percent is not None or "NVML" in notes[0]
        assert sum(row.stream_shares) == pytest.approx(1.0)
        # Autograd runs the kernels of a backward pass on the stream of its forward pass.
        assert row.stream_shares[0] > 0.5
        # Plan `auto` may capture in the timed rounds.
        assert row.plan == "auto" or row.grown_memory_bytes < 2**20
    assert rows["captured"].capture["num_graphs"] == 1
    assert rows["captured"].capture["refusal"] is None
    assert rows["captured"].capture_seconds > 0
    assert rows["captured"].late_captures == 0
    # Blocking and copying a batch cost kernels of their own, a few.
    kernels = [rows[plan].kernels_per_step for plan in ("gapless", "captured")]
    assert abs(kernels[0] - kernels[1]) < 0.2 * kernels[0]
    # The meter sees gaps between steps alone, the trace those inside as well.
    assert rows["gapless"].gap_share > rows["gapless"].meter_gap_share


def test_the_demo_is_compared_on_a_gpu(tmp_path, capsys):
    """The command itself: bits of all plans, replays among them, and both tables."""
    file = tmp_path / "out.json"
    command = [
        "compare",
        "--device",
        "cuda",
        "--steps",
        "10",
        "--rounds",
        "2",
        "--json",
        str(file),
    ]
    command += ["--d-model", "64", "--heads", "4", "--ffn", "128", "--batch-tokens", "1024"]
    command += ["--encoder-layers", "2", "--decoder-layers", "2", "--plans"]

    code = run_command([*command, "blocking,events-interval,four-stream,gapless,captured"])

    out = capsys.readouterr().out
    assert code == 0, out
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["is_accelerator"]
    assert all(row["identical"] for row in found["rows"])
    assert "captured against a plain loop: bit-identical" in out
    assert "of them replays" in out
    assert found["rows"][-1]["capture"]["num_replays"] > 0
    assert found["recommendation"]["plan"] in [row["plan"] for row in found["rows"]]
    assert "peak memory" in out
