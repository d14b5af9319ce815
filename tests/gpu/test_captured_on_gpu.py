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
    options = (*options, "--fixed-shapes", "--no-compile")
    eager, _ = train(tmp_path / "eager", "--plan", "gapless", *options)
    captured, summary = train(tmp_path / "captured", "--plan", "captured", *options)

    assert [row["loss"] for row in eager] == [row["loss"] for row in captured]
    assert summary["capture"]["num_graphs"] > 1
    assert summary["capture"]["refusal"] is None
    assert summary["capture"]["num_eager"] == 0
    assert set(summary["host_waits"]) == {"epoch_end"}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("accumulate", ["1", "2"])
@pytest.mark.parametrize("dropout", ["0", "0.1"])
def test_a_captured_run_on_packed_batches_equals_an_eager_one(
    tmp_path, precision, accumulate, dropout
):
    """By the kernels and by padded rows, one graph or two, every loss has the same bits."""
    options = ("--precision", precision, "--accumulate", accumulate, "--pack", "--no-compile")
    options += ("--attention-dropout", dropout)
    eager, _ = train(tmp_path / "eager", "--plan", "gapless", *options)
    captured, summary = train(tmp_path / "captured", "--plan", "captured", *options)

    assert [row["loss"] for row in eager] == [row["loss"] for row in captured]
    assert summary["capture"]["num_graphs"] == int(accumulate)
    assert summary["capture"]["num_eager"] == 0
    assert set(summary["host_waits"]) == {"epoch_end"}


# Torch's compiler looks at whatever may warn; as errors those stop it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [("--pack",), ("--fixed-shapes",), ("--no-compile",)], ids=str)
def test_a_model_learns_with_attention_dropout(tmp_path, options):
    """Equal bits are not enough: the kernel for packed sentences once learned nothing with it."""
    settings = ("--attention-dropout", "0.1", "--warmup", "60", "--lr", "3e-3")
    losses, _ = train(tmp_path / "run", "--plan", "captured", *settings, *options)

    assert sum(row["loss"] for row in losses[-20:]) / 20 < 4.0


# Torch's compiler looks at whatever may warn; as errors those stop it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["--pack", "--fixed-shapes"])
def test_compiled_layers_learn_the_same(tmp_path, layout):
    """Without dropout, losses stay within rounding of bf16; twice in one process."""
    options = ("--precision", "bf16", "--dropout", "0", layout)
    eager, _ = train(tmp_path / "eager", "--plan", "gapless", "--no-compile", *options)
    for run in ("compiled", "again"):
        found, summary = train(tmp_path / run, "--plan", "captured", *options)

        assert summary["capture"]["refusal"] is None
        assert summary["capture"]["num_eager"] == 0
        pairs = zip(eager, found, strict=True)
        differences = [abs(one["loss"] - other["loss"]) for one, other in pairs]
        assert max(differences[:20]) < 0.02
        assert sum(differences) / len(differences) < 0.1
