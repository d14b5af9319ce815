"""Variants of a script on a GPU: measured, and the script computes and prints what it does without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

from gapless.device.find import find_device
from gapless.doctor.watching.variant_trials import VariantTrials
from gapless.trials.captured_parts import CapturedParts


pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(6400, 32), torch.randn(6400, 1))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
total = 0.0
for epoch in range(4):
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        loss = (model(x.cuda()) - y.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 100 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.6f} total {total:.6f}")
print(f"{total:.3f}")
"""


def losses(num_steps, *, at_end=lambda: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    found = []
    for _ in range(num_steps):
        loss = model(torch.randn(16, 32).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
        at_end()
    return [loss.item() for loss in found]


def test_windows_of_captured_parts_have_the_losses_as_written(monkeypatch):
    """Graphs in turns with calls as written train as the script does, to the bit."""
    # Other tests of this process may have compiled something.
    monkeypatch.setattr("torch._dynamo.utils.counters", defaultdict(Counter))
    expected = losses(150)
    variant_trials = VariantTrials(
        [CapturedParts(find_device("cuda"))],
        synchronize=torch.cuda.synchronize,
        step_ended=lambda optimizer: None,
        num_windows=3,
        num_steps=10,
        least_s=0.0,
    )
    variant_trials.start()

    found = losses(150, at_end=variant_trials.next_step)
    variant_trials.stop()

    (trial,) = variant_trials.trials
    assert trial.refusal == ""
    assert len(trial.steps_per_second.rounds) == 3
    assert all("1 graph" in text for text in trial.details), trial.details
    assert found == expected


def test_the_command_measures_a_variant_of_a_script(tmp_path):
    """The one that is named is measured, and the script prints what it prints without the doctor."""
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    plain = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300
    )

    done = subprocess.run(
        [sys.executable, "-m", "gapless", "doctor", "--try=captured", "--format", "json",
         "--out", str(report), str(script)],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip

    assert done.stdout == plain.stdout
    session = json.loads(report.read_text())
    tried, notes = [(one["name"], one["refusal"]) for one in session["trials"]], session["notes"]
    assert tried == [("captured in place", "")], notes
    assert any(note.startswith("Variants were measured") for note in notes)
