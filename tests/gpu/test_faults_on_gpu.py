"""Losses that are not finite, and memory that is short, on a GPU."""

from __future__ import annotations

import json
import math

import pytest
import torch

from gapless.cli.main import run_command
from gapless.nmt.model.loss import LossCompute


pytestmark = pytest.mark.gpu

COMMAND = [
    *("train", "--device", "cuda", "--d-model", "64", "--ffn", "128", "--heads", "4"),
    *("--encoder-layers", "2", "--decoder-layers", "2", "--dropout", "0.2", "--deterministic"),
    *("--beam", "1", "--workers", "0", "--val-interval", "100", "--fixed-shapes", "--no-compile"),
]


def train(folder, *options):
    """Train for 120 updates; return every loss and the summary."""
    run = [*COMMAND, "--run-dir", str(folder), "--max-steps", "120", "--batch-tokens", "2048"]
    assert run_command([*run, *options]) == 0
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if row["kind"] == "train"]
    return losses, json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture
def poison(monkeypatch):
    """Losses of some batches are not finite; the device decides of which."""
    normalized = LossCompute.normalized

    def poisoned(self, out, targets, normalize):
        loss = normalized(self, out, targets, normalize)
        if not torch.is_grad_enabled():
            return loss
        return loss * torch.where(targets.flatten()[0] % 5 == 0, math.nan, 1.0)

    monkeypatch.setattr(LossCompute, "normalized", poisoned)


@pytest.mark.parametrize(
    "options",
    [("--precision", "bf16"), ("--precision", "fp32", "--accumulate", "2")],
    ids=" ".join,
)
def test_a_captured_run_skips_as_an_eager_one(tmp_path, poison, options):
    """Graphs skip the same updates without a wait, and every other loss has the same bits."""
    options = (*options, "--on-nonfinite", "skip")
    eager, plain = train(tmp_path / "eager", "--plan", "gapless", *options)
    captured, summary = train(tmp_path / "captured", "--plan", "captured", *options)

    assert eager == captured
    assert 0 < plain["skipped_updates"] == summary["skipped_updates"] < 120
    assert summary["skipped_updates"] <= captured.count(None)
    assert summary["capture"]["refusal"] is None
    assert summary["capture"]["num_graphs"] > 1
    assert summary["capture"]["num_eager"] == 0
    assert set(summary["host_waits"]) == {"epoch_end"}
    assert all(map(math.isfinite, summary["loss"]))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_looking_changes_no_bits(tmp_path, precision):
    """A captured run that would skip has the losses of one that would stop."""
    options = ("--plan", "captured", "--precision", precision)
    stopping, _ = train(tmp_path / "stop", *options)
    skipping, summary = train(tmp_path / "skip", *options, "--on-nonfinite", "skip")

    assert stopping == skipping
    assert summary["skipped_updates"] == 0


@pytest.mark.parametrize("plan", ["gapless", "captured"])
def test_too_little_memory(tmp_path, capsys, plan):
    """One line has phase, bytes, shape, and what to lower."""
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + (1 << 30)) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        run = [*COMMAND, "--run-dir", str(tmp_path / "run"), "--batch-tokens", "400000"]
        code = run_command([*run, "--d-model", "1024", "--ffn", "4096", "--plan", plan])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert error.startswith("gapless: error: out of memory while ")
    assert "bytes were asked for" in error
    assert "source and" in error
    assert "; lower --" in error
