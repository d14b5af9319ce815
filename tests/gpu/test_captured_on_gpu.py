"""The captured plan on a GPU, in the trainer itself."""

from __future__ import annotations

import json

import pytest

from gapless.cli.main import run_command


pytestmark = pytest.mark.gpu


def train(folder, *options):
    """Train a small model on the embedded corpus; return every loss and the summary."""
    command = ["train", "--run-dir", str(folder), "--device", "cuda", "--max-steps", "200"]
    command += ["--d-model", "64", "--ffn", "128", "--heads", "4", "--val-interval", "100"]
    command += ["--encoder-layers", "2", "--decoder-layers", "2", "--batch-tokens", "2048"]
    command += ["--dropout", "0.2", "--deterministic", "--beam", "1", "--workers", "0"]

    assert run_command([*command, *options]) == 0

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return losses, json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "bf16"),
        ("--precision", "fp16"),
        ("--precision", "fp32", "--accumulate", "2"),
    ],
    ids=" ".join,
)
def test_a_captured_run_equals_an_eager_one(tmp_path, options):
    """On the same padded batches, every loss has the same bits; no wait but at epochs' ends."""
    eager, _ = train(tmp_path / "eager", "--plan", "gapless", "--fixed-shapes", *options)
    captured, summary = train(tmp_path / "captured", "--plan", "captured", *options)

    assert [row["loss"] for row in eager] == [row["loss"] for row in captured]
    assert summary["capture"]["num_graphs"] > 1
    assert summary["capture"]["refusal"] is None
    assert summary["capture"]["num_eager"] == 0
    assert set(summary["host_waits"]) == {"epoch_end"}
