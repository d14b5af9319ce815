"""A loss that is not finite is found at its update, wherever that is, and stopped at or skipped."""

from __future__ import annotations

import json
import re

import pytest
import safetensors.torch

from faults.faults import EXPLODING
from faults.runs import newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: non finite")


def first_bad(run):
    """Return the number of the first loss that is not finite, which is written as null."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    return losses.index(None)


@pytest.fixture
def explode(run, data, tmp_path):
    """Train with a learning rate that is far too high."""

    def call(name, *more):
        options = train_options(data, tmp_path / name, save_every=3)
        return run(*options, *EXPLODING, *more), tmp_path / name

    return call


@pytest.mark.slow
def test_the_update_is_named(explode):
    """The run stops with the exact update, in the log of errors too; none after it is kept."""
    ended, folder = explode("run")

    named = f"update {first_bad(folder) + 1}"
    ended.check_refused(named)
    assert newest_step(folder) <= first_bad(folder)
    lines = (folder / "errors.log").read_text().splitlines()
    [logged] = [line for line in lines if "  error: " in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  update \d+  error: ", logged)
    assert named in logged.partition("error: ")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says", "missing"), [(1, "update", "final"), (0, "validation", "best")]
)
def test_it_is_found_at_the_end(explode, more, says, missing):
    """In the very last update, which no other one follows, and in the validation after it."""
    _, folder = explode("first")

    ended, last = explode("last", "--max-steps", first_bad(folder) + more)

    ended.check_refused(says)
    assert not (last / "checkpoints" / missing).exists()


@pytest.mark.slow
def test_updates_are_skipped(explode):
    """With `skip` such an update changes no weight, is counted, and the run goes on."""
    ended, folder = explode("run", "--on-nonfinite", "skip", "--lr", "1e30", "--epochs", 1)

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
