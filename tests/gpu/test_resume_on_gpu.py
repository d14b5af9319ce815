"""A run that is resumed on a GPU, against one that is not."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch

from gapless.nmt.run_folder.checkpoints import load_state
from gapless.pipeline.tree.flatten import flatten


pytestmark = pytest.mark.gpu


@pytest.fixture
def text(tmp_path):
    """Sentences of one word to forty."""
    draw = random.Random(1)
    rows = [
        " ".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, 40))) for _ in range(900)
    ]
    path = tmp_path / "text.tsv"
    path.write_text("en\tzh\n" + "".join(f"{row}\t{row[::-1]}\n" for row in rows))
    return path


def train(*arguments):
    """Run a command in a process of its own, as a resumed run has one."""
    command = [sys.executable, "-m", "gapless", "train", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def tensors_of(run):
    """Return the tensors of a run's newest state."""
    _, state = load_state(run, on_damaged=pytest.fail)
    return flatten({name: state[name] for name in ("model", "step")}).leaves


@pytest.mark.parametrize("layers", ["--compile", "--no-compile"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not(tmp_path, text, layers):
    """Weights and moments, with packed batches and one table of embeddings for both sides and the output."""
    sizes = ["--d-model", 64, "--ffn", 128, "--heads", 4, "--encoder-layers", 2]
    sizes += ["--decoder-layers", 2, "--batch-tokens", 1024, "--tokenizer", "none"]
    common = ["--data", text, "--device", "cuda", "--plan", "captured"]
    common += ["--pack", "--deterministic"]
    common += ["--shared-vocab", "--share", "all", "--warmup", 20, "--validate-every", "10h"]
    common += ["--average", 1, "--beam", 1, layers, *sizes]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"

    train("--run-dir", whole, "--max-steps", 40, *common)
    train("--run-dir", resumed, "--max-steps", 20, *common)
    train("--resume", resumed, "--max-steps", 40)

    for one, other in zip(tensors_of(whole), tensors_of(resumed), strict=True):
        assert torch.equal(one, other)
