"""Made-up figures of the origin's plans, as a file of a comparison has them."""

from __future__ import annotations

import json
from dataclasses import replace

from gapless.records.comparison import ComparisonReport, PlanRow, Recommendation, Spread
from gapless.report.json_reports import comparison_json


def make(plan, ms=97.0, *, waits=None, **changed):
    counts = {"batch": 1.0, "loss_read": 0.1} if waits is None else waits
    row = PlanRow(
        plan=plan,
        identical=True,
        ms_per_step=Spread.of([ms]),
        steps_per_epoch=50.0,
        throughput=1.0,
        waits_per_step=sum(counts.values()),
        waited_ms_per_step=25.0,
        waits_by_reason={
            name: {"count": count, "ms": 0.3 * count} for name, count in counts.items()
        },
        data_wait_ms_per_step=0.0,
        launch_ms_per_step=1.0,
        host_cpu_percent=70.0,
        own_cpu_percent=62.0,
        busy_ms_per_step=70.0,
        gap_share=0.3,
        nvml_percent=76.0,
        overlap_share=0.0,
        stream_shares=(0.7, 0.3),
        peak_memory_bytes=1000,
        grown_memory_bytes=0,
    )
    return replace(row, **changed)


def origins_dream():
    """Return rows in which as much as can be is as the origin said it would be."""
    tenth = {"interval": 0.1, "epoch_end": 0.02}
    every = {"batch": 1.0, "loss_read": 1.0}
    later = {"waits": tenth, "waited_ms_per_step": 2.5}
    return {
        row.plan: row
        for row in (
            make("blocking", 100.0, waits=every, nvml_percent=70.0),
            make("deferred-loss", 97.0),
            make("events", 93.1, waited_ms_per_step=20.0),
            make("interval", 93.1, **later),
            make("events-interval", 93.1, own_cpu_percent=83.0, nvml_percent=80.0, **later),
            make(
                "four-stream",
                85.0,
                nvml_percent=92.0,
                overlap_share=0.2,
                peak_memory_bytes=2500,
                **later,
            ),
            make("full", 84.0, nvml_percent=92.0, peak_memory_bytes=2500, **later),
        )
    }


def comparison_of(rows, *, is_accelerator=True, cores=16):
    """Return what a file of these rows holds."""
    report = ComparisonReport(
        workload="w.py:make",
        device="cuda:0",
        hardware="NVIDIA H200",
        is_accelerator=is_accelerator,
        torch="2.11.0",
        commit=None,
        unit="steps",
        settings={},
        rows=tuple(rows.values()),
        recommendation=Recommendation(plan=None, reasons=()),
    )
    return json.loads(comparison_json(report)) | {"cores": cores}
