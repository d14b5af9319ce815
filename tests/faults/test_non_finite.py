"""A loss that is not finite is found at its update, wherever that is, and stopped at or skipped."""

from __future__ import annotations

import json
import math
import re

import pytest
import safetensors.torch

from faults.runs import newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: non finite")

# Weights explode within a few updates.
EXPLODING = ["--lr", "1e18", "--clip-norm", "0", "--warmup", "1", "--schedule", "constant"]
SIZES = ["--save-every", 3, "--accumulate", 1]


def losses(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


@pytest.fixture
def explode(run, data, tmp_path):
    """Train with a learning rate that is far too high."""

    def call(name, *more):
        options = train_options(data, tmp_path / name)
        return run(*options, *EXPLODING, *SIZES, *more), tmp_path / name

    return call


@pytest.mark.parametrize(
    "plan",
    ["gapless", *(pytest.param(p, marks=pytest.mark.slow) for p in ("blocking", "full", "auto"))],
)
def test_the_update_is_named(explode, plan):
    """The run stops with the exact update; the record has the losses up to it."""
    ended, folder = explode("run", "--plan", plan)

    ended.check_refused("update")
    [named] = re.findall(r"update (\d+)", ended.errors[0])[:1]
    found = losses(folder)
    first = next(n for n, loss in enumerate(found) if loss is None or not math.isfinite(loss))
    assert int(named) in (first, first + 1), "counted from 0 or from 1"
    assert newest_step(folder) <= first, "no state after it is kept"
    lines = (folder / "errors.log").read_text().splitlines()
    [logged] = [line for line in lines if "  error: " in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  update \d+  error: ", logged)
    assert f"update {named}" in logged.partition("error: ")[2]


@pytest.mark.slow
def test_it_is_found_in_the_last_update(explode):
    """A loss of the very last update is found as well, though no other one is read after it."""
    _, folder = explode("first")
    first = next(n for n, loss in enumerate(losses(folder)) if loss is None)

    ended, folder = explode("last", "--max-steps", first + 1)

    ended.check_refused("update")
    assert not (folder / "checkpoints" / "final").exists()


def test_it_is_found_in_validation(explode):
    """A model that has become useless in the last update fails in validation, which is named."""
    _, folder = explode("first")
    first = next(n for n, loss in enumerate(losses(folder)) if loss is None)

    ended, folder = explode("validation", "--max-steps", first)

    ended.check_refused("validation")
    assert not (folder / "checkpoints" / "best").exists()


@pytest.mark.parametrize("plan", ["gapless", pytest.param("blocking", marks=pytest.mark.slow)])
def test_updates_are_skipped(explode, plan):
    """With `skip` such an update changes no weight, is counted, and the run goes on."""
    ended, folder = explode(
        "run", "--on-nonfinite", "skip", "--lr", "1e30", "--plan", plan, "--epochs", 1
    )

    ended.check_no_traceback()
    assert "skipped" in ended.out + ended.err
    logged = (folder / "errors.log").read_text().splitlines()
    expected = ("the loss of update", "the sides are named", "the model has learned nothing")
    assert all(any(words in line for words in expected) for line in logged)
    assert sum(expected[0] in line for line in logged) > 0
    for path in folder.glob("checkpoints/step-*/tensors.safetensors"):
        for name, tensor in safetensors.torch.load_file(path).items():
            if tensor.is_floating_point() and "loss" not in name:
                assert tensor.isfinite().all(), name


@pytest.mark.slow
def test_skipping_changes_nothing_else(run, data, finished, tmp_path):
    """A run in which nothing is skipped has the bits of one that would stop."""
    ended = run(*train_options(data, tmp_path / "run"), "--on-nonfinite", "skip")

    ended.check_done()
    assert (tmp_path / "run/checkpoints/final/tensors.safetensors").read_bytes() == (
        finished / "checkpoints/final/tensors.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("value", ["ignore", pytest.param("", marks=pytest.mark.slow)])
def test_another_answer_is_refused(run, data, tmp_path, value):
    """Only stop and skip are answers."""
    ended = run(*train_options(data, tmp_path / "run"), "--on-nonfinite", value)

    ended.check_refused("--on-nonfinite", "stop", "skip")
