"""Small workloads and made-up reports that several tests use."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from gapless.compare.ranking import recommend
from gapless.compare.recorded_run import run_plan
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.pipeline.step import StepLoss
from gapless.records.comparison import ComparisonReport, PlanRow, Spread
from gapless.records.training import TrainingEpoch


CPU = find_device("cpu")


def plan_of_run():
    """Return the name of the plan that a verification runs from here; None in a plain loop."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not run_plan.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["plan"]


def small_workload(log=None, *, num_batches=4, unit="", shuffle=False):
    """Return a function that builds a linear model for a plan; `log` notes every step's plan."""

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


def small_for_any_plan(device):
    """Build the small workload for whatever plan runs it."""
    return small_workload()(device, None)


def compare_settings(plans=("blocking", "gapless", "interval"), *, device=CPU, **changed):
    """Return the settings of a small comparison that times plans without comparing bits."""
    numbers = {"steps": 4, "rounds": 3, "warmup_rounds": 1, "verify_steps": 0}
    run = {name: changed.pop(name) for name in ("seed", "tolerance") if name in changed}
    seconds = changed.pop("seconds", None)
    return CompareSettings(
        run=RunSettings(device=device, **run),
        rounds=Rounds(**{**numbers, **changed}),
        plans=tuple(plans),
        seconds=seconds,
    )


def made_up_rows():
    """Return figures of three plans on a GPU."""
    blocking = PlanRow(
        plan="blocking",
        identical=True,
        ms_per_step=Spread.of([40.0, 41.0, 50.0]),
        steps_per_epoch=50.0,
        throughput=20_000.0,
        waits_per_step=2.0,
        waited_ms_per_step=12.5,
        waits_by_reason={
            "batch": {"count": 1.0, "ms": 12.4},
            "loss_read": {"count": 1, "ms": 0.1},
        },
        data_wait_ms_per_step=0.5,
        launch_ms_per_step=25.0,
        host_cpu_percent=101.0,
        busy_ms_per_step=10.25,
        kernels_per_step=1234.0,
        overlap_share=0.0,
        gap_share=0.75,
        nvml_percent=76.0,
        peak_memory_bytes=2**30,
        held_memory_bytes=3 * 2**29,
    )
    captured = replace(
        blocking,
        plan="captured",
        ms_per_step=Spread.of([11.0, 11.1, 11.2]),
        throughput=75_000.0,
        waits_per_step=0.02,
        gap_share=0.08,
        nvml_percent=None,
        capture_seconds=1.5,
        capture={"num_graphs": 3, "refusal": "train.py:7: a host wait"},
        late_captures=2,
    )
    auto = replace(captured, plan="auto", diagnosis="auto: launch-bound", late_captures=0)
    return blocking, captured, replace(auto, capture=None, capture_seconds=None)


def made_up_report(**changed):
    """Return a comparison of three plans on a GPU."""
    rows = made_up_rows()
    report = ComparisonReport(
        workload="w.py:make",
        device="cuda:0",
        hardware="NVIDIA H200",
        is_accelerator=True,
        torch="2.11.0",
        commit="abc1234",
        unit="target tokens",
        settings={"steps": 50, "rounds": 3, "tolerance": None},
        rows=rows,
        recommendation=recommend(rows, is_accelerator=True),
        notes=("A note.",),
        reproducible=True,
    )
    return replace(report, **changed)


def made_up_epoch(**changes):
    """Return an epoch of a training run on a GPU."""
    values = {
        "epoch": 2,
        "loss": 3.14159,
        "num_batches": 100,
        "target_tokens": 12_000,
        "wall_ms": 4000.0,
        "waits": {"interval": {"count": 10, "ms": 25.0}, "epoch_end": {"count": 1, "ms": 0.5}},
        "data_wait_ms": 7.0,
        "launch_ms": 350.0,
        "busy_ms": 900.0,
        "gap_ms": 100.0,
        "peak_memory_bytes": 3 << 20,
        "validation": {},
    }
    return TrainingEpoch.of_state({**values, **changes})
