"""States that are saved while a device runs late: no waits, and the same bits from each of them."""

from __future__ import annotations

import shutil
from concurrent.futures import wait

import pytest

from gapless.nmt.run import training_run
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.resume import resumed_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.write_queue import WriteQueue
from gapless.nmt.settings.config import make_config
from gapless.testing.simulated.simulated_device import SimulatedDevice
from tiny_run import Silent, as_asked, tiny_config, write_letters


@pytest.fixture
def train(tmp_path, monkeypatch, numerics):
    """Train or resume in a folder, on a simulated device; return the summary."""
    write_letters(tmp_path / "d.tsv", count=24)
    settings = {
        "device": "auto",
        "beam": 1,
        "batch_size": 4,
        "dropout": 0.3,
        "warmup": 5,
        "average": 1,
        "keep": 50,
        "compile": False,
        "pack": False,
        "fixed_shapes": False,
        "max_length": 8,
    }

    def call(run, **more):
        with SimulatedDevice(scheduler="asap") as device:
            monkeypatch.setattr(training_run, "find_device", lambda name: device)
            if run.exists():
                config = make_config({}, file=run / "config.yaml")
                return Trainer(resumed_run(config, run), observer=Silent()).train()
            config = tiny_config(tmp_path, **{**settings, **more}, run_dir=str(run))
            return Trainer(new_run(as_asked(config)), observer=Silent()).train()

    return call


@pytest.fixture
def states_are_written_at_once(monkeypatch):
    """Let no state be left out because the thread is still writing the one before, as on a busy machine."""
    poll = WriteQueue.poll

    def poll_and_write(queue):
        poll(queue)
        wait([written for _, written in queue._writing])
        poll(queue)

    monkeypatch.setattr(WriteQueue, "poll", poll_and_write)


def waits(summary):
    """Return how often the host waited, by reason."""
    stats = {**summary["host_waits"], **summary["host_waits_outside_training"]}
    return {reason: each["count"] for reason, each in stats.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"plan": "gapless", "accumulate": 2, "precision": "fp16"},
        {"plan": "captured", "fixed_shapes": True},
        {"plan": "four-stream"},
    ],
    ids=lambda settings: settings["plan"],
)
@pytest.mark.usefixtures("states_are_written_at_once")
def test_states_cost_no_wait_and_lead_to_the_same_end(train, tmp_path, settings):
    """With the losses on the device, and a scaler: as many waits, and equal weights from each."""
    plain = train(tmp_path / "plain", save_every="100000", **settings)
    whole = tmp_path / "whole"
    summary = train(whole, save_every="1", **settings)
    states = checkpoints.state_store(whole).paths()

    if settings["plan"] == "captured":
        assert plain["capture"]["refusal"] is None
        assert plain["capture"]["num_replays"] > 0
    assert len(states) > 2
    assert plain["loss"] == summary["loss"]
    assert waits(plain) == waits(summary)
    final = "checkpoints/final/tensors.safetensors"
    for state in states[1:2]:
        run = shutil.copytree(whole, tmp_path / state.name)
        for later in checkpoints.state_store(run).paths():
            if later.name > state.name:
                shutil.rmtree(later)
        assert train(run)["loss"] == summary["loss"]
        assert (run / final).read_bytes() == (whole / final).read_bytes()
