"""How far a run is, and the format in which its folder keeps that."""

from __future__ import annotations

import pytest

from gapless.nmt.run_folder.training_progress import TrainingProgress
from gapless.records.epoch_record import EpochRecord
from gapless.records.wait_stats import WaitStats


# The format of a file that runs of earlier versions have written: it cannot follow a class.
POSITION_KEYS = [
    "epoch",
    "updates",
    "batches",
    "losses",
    "weights",
    "records",
    "best_loss",
    "best_bleu",
    "validations_without_better",
    "validated_at",
    "validation_seconds",
    "wall_seconds",
]
RECORD_KEYS = [
    *("epoch", "loss", "num_batches", "target_tokens", "wall_ms", "waits"),
    *("data_wait_ms", "launch_ms", "busy_ms", "gap_ms", "peak_memory_bytes", "validation"),
]


def work(losses, weights):
    waits = WaitStats()
    waits.add("epoch_end", ms=1.5)
    return EpochRecord(
        num_batches=len(losses),
        losses=losses,
        mean_loss=0.0,
        weight=sum(weights),
        waits=waits,
        data_wait_ms=1.0,
        launch_ms=2.0,
        wall_ms=10.0,
        busy_ms=4.0,
        gap_ms=None,
    )


@pytest.fixture
def progress():
    progress = TrainingProgress(best_loss=2.5, wall_seconds=7.0)
    progress.add(work([4.0], [3.0]), updates=1, weights=[3.0], peak_memory_bytes=5)
    progress.end_epoch().validation["val_loss"] = 2.5
    progress.add(work([3.0, 2.0], [1.0, 3.0]), updates=1, weights=[1.0, 3.0], peak_memory_bytes=6)
    return progress


def test_the_state_of_the_progress_keeps_its_keys(progress):
    """The state has these keys in this order, and plain values."""
    state = progress.state()

    assert list(state) == POSITION_KEYS
    assert [list(record) for record in state["records"]] == [RECORD_KEYS, RECORD_KEYS]
    assert state["records"][0] == {
        "epoch": 1,
        "loss": 4.0,
        "num_batches": 1,
        "target_tokens": 3,
        "wall_ms": 10.0,
        "waits": {"epoch_end": {"count": 1, "ms": 1.5}},
        "data_wait_ms": 1.0,
        "launch_ms": 2.0,
        "busy_ms": 4.0,
        "gap_ms": None,
        "peak_memory_bytes": 5,
        "validation": {"val_loss": 2.5},
    }


def test_progress_comes_back_from_its_state(progress):
    """Progress that was read has the same state, and goes on with the same epoch."""
    again = TrainingProgress.of_state(progress.state())
    for one in (progress, again):
        one.add(work([1.0], [4.0]), updates=1, weights=[4.0], peak_memory_bytes=7)

    assert again.state() == progress.state()
    assert again.batches_before == 4
    assert again.records[-1].work.mean_loss == pytest.approx((3 + 6 + 4) / 8)
    assert again.records[-1].work.num_batches == 3


def test_a_state_does_not_change_with_its_progress(progress):
    """A state can be written while the run goes on."""
    state = progress.state()
    progress.add(work([1.0], [4.0]), updates=1, weights=[4.0], peak_memory_bytes=7)

    assert state["losses"] == [3.0, 2.0]
    assert state["updates"] == 1
    assert len(state["records"]) == 2
    assert state["batches"] == 2
