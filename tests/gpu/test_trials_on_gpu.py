"""Variants of a script on a GPU: the same text and the same bits, and no waits where reads are late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from torch import nn

import gapless
from gapless.device.find import find_device
from gapless.doctor.turns import Turns
from gapless.trials.captured_parts import CapturedParts
from gapless.trials.late_reads import LateReads


pytestmark = pytest.mark.gpu

PRINTING = Path(__file__).parents[1] / "trials" / "printing_script.py"

PATHS = [str(PRINTING.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
WITH_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}

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


def printed(tmp_path, way, end):
    log = tmp_path / f"{way}.log"
    done = subprocess.run(
        [sys.executable, str(PRINTING), way, end, str(log), "cuda"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
        env=WITH_TESTS,
    )
    return done.returncode, done.stdout, log.read_text()


@pytest.mark.parametrize("end", ["stop", "raise", "exit"])
def test_the_same_is_printed(tmp_path, end):
    """Both outputs and the log have the bytes of the script as written."""
    written, late = printed(tmp_path, "written", end), printed(tmp_path, "late", end)

    assert (late[0], late[1][: len(written[1])], late[2]) == written


def test_reads_that_are_added_up_do_not_wait():
    """The host waits for nothing in the loop, and the sum is that of the numbers."""
    device = find_device("cuda")
    x = torch.rand(64, device="cuda")
    expected = sum((x[:number] * 3).sum().item() for number in range(1, 40))
    variant = LateReads(device)
    variant.start(lambda optimizer: None)
    try:
        with gapless.count_waits("cuda") as waits:
            total = 0
            for number in range(1, 40):
                total += (x[:number] * 3).sum().item()
        assert waits.count == 0, str(waits)
        assert total == expected
    finally:
        variant.stop()
        variant.close()


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
)
def test_numbers_of_all_kinds_are_those_of_the_tensor(kind):
    """A late number has the value and the class of the read as written."""
    tensor = torch.tensor([3.1415926], device="cuda").to(kind)
    expected = tensor.item()
    variant = LateReads(find_device("cuda"))
    variant.start(lambda optimizer: None)
    try:
        found = tensor.item() + 0
    finally:
        variant.stop()
        variant.close()

    assert found == expected
    assert isinstance(found, type(expected))


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
    turns = Turns(
        [CapturedParts(find_device("cuda"))],
        synchronize=torch.cuda.synchronize,
        step_ended=lambda optimizer: None,
        num_windows=3,
        num_steps=10,
        least_s=0.0,
    )
    turns.start()

    found = losses(150, at_end=turns.next_step)
    turns.stop()

    (trial,) = turns.trials
    assert trial.refusal == ""
    assert len(trial.steps_per_second.rounds) == 3
    assert all("1 graph" in text for text in trial.details), trial.details
    assert found == expected


def test_the_command_measures_variants_of_a_script(tmp_path):
    """All three are measured, and the script prints what it prints without the doctor."""
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    plain = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300
    )

    done = subprocess.run(
        [sys.executable, "-m", "gapless", "doctor", "--try=late-reads,captured", "--format", "json",
         "--out", str(report), str(script)],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip

    assert done.stdout == plain.stdout
    trials = json.loads(report.read_text())["trials"]
    assert [(trial["name"], trial["refusal"]) for trial in trials] == [
        ("late reads", ""),
        ("captured in place", ""),
    ]
