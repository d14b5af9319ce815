"""Checkpoints on a GPU: copied while training goes on."""

from __future__ import annotations

import json
import random

import pytest
import torch

from gapless.cli.main import run_command
from gapless.device.find import find_device
from gapless.nmt.run_folder import checkpoints as checkpoint
from gapless.pipeline.host_copy import HostCopy
from gapless.pipeline.host_waits import HostWaits
from gapless.testing import forbid_waits


pytestmark = pytest.mark.gpu


def test_a_copy_has_the_values_of_its_moment():
    """Many copies of changing weights are queued behind a busy device, without a wait."""
    device = find_device("cuda")
    weights = {str(n): torch.zeros(1 << 16, device="cuda") for n in range(16)}
    half = torch.zeros(1 << 16, device="cuda", dtype=torch.bfloat16)
    # To make page-locked memory waits for the device; torch keeps what is given back.
    warm_ups = [HostCopy([weights, half], device=device) for _ in range(6)]
    for copy in warm_ups:
        copy.wait(HostWaits(device), reason="test")
    copies = [warm_ups[0]]
    del warm_ups, copy
    device.delay(device.current_stream(), 1.0)
    # The driver may wait for the device to load a kernel that is used for the first time.
    torch._foreach_add_(list(weights.values()), 0.0)
    half += 0
    torch.cuda.synchronize()

    with forbid_waits(device):
        device.delay(device.current_stream(), 1000.0)  # far longer than to queue copies
        for _ in range(5):
            torch._foreach_add_(list(weights.values()), 1.0)
            half += 1
            copies.append(HostCopy([weights, half], device=device))
        assert not copies[-1].is_done()

    copies[-1].wait(HostWaits(device), reason="test")
    for number, copy in enumerate(copies):
        copied, copied_half = copy.value
        assert all(bool((weight == number).all()) for weight in copied.values())
        assert bool((copied_half == number).all())


def train(folder, plan):
    """Train for six short epochs and return the summary."""
    draw = random.Random(1)
    rows = [
        " ".join(draw.choice("abcdefgh") for _ in range(draw.randint(2, 9))) for _ in range(600)
    ]
    folder.mkdir()
    (folder / "d.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    run = folder / "run"
    command = ["train", "--data", str(folder / "d.tsv"), "--columns", "en,zh"]
    command += ["--run-dir", str(run), "--plan", plan]
    command += ["--device", "cuda", "--epochs", "6", "--average", "6", "--val-interval", "3"]
    command += ["--d-model", "64", "--ffn", "128", "--heads", "4", "--batch-tokens", "256"]
    command += ["--encoder-layers", "2", "--decoder-layers", "2", "--tokenizer", "none"]
    command += ["--no-compile", "--fixed-shapes", "--deterministic", "--beam", "1"]

    assert run_command(command) == 0

    return run, json.loads((run / "summary.json").read_text(encoding="utf-8"))


def test_no_epoch_waits_for_its_checkpoint(tmp_path):
    """Every epoch's weights are saved, the same under two plans; waits are those of the end."""
    runs = [train(tmp_path / plan, plan) for plan in ("gapless", "captured")]

    for run, summary in runs:
        assert len(checkpoint.epoch_paths(run)) == 6
        assert summary["host_waits_outside_training"]["checkpoint"]["count"] <= 5
    files = zip(*(checkpoint.epoch_paths(run) for run, _ in runs), strict=True)
    for one, other in files:
        weights, others = checkpoint.read_weights(one), checkpoint.read_weights(other)
        assert all(torch.equal(weights[name], others[name]) for name in weights)
    first, last = (checkpoint.read_weights(checkpoint.epoch_path(runs[0][0], n)) for n in (1, 6))
    assert not all(torch.equal(first[name], last[name]) for name in first)
