"""`gapless run` on a GPU: a script trains to the same bits, as graphs, and says what it says without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gapless


pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
data = TensorDataset(torch.randn(6400, 32), torch.randn(6400, 1))
layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(8)]
model = torch.nn.Sequential(torch.nn.Linear(32, 64), *layers, torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
{before}
for epoch in range(4):
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        loss = (forward(x.cuda()) - y.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"epoch {{epoch}} step {{step}} loss {{loss.item()!r}}")
    torch.save([model.state_dict(), optimizer.state_dict()], f"{{epoch}}.pt")
raise SystemExit(4)
"""

GRAPH_OF_ITS_OWN = """
graph = torch.cuda.CUDAGraph()
still = torch.zeros(8, device="cuda")
with torch.cuda.graph(graph):
    other = still + 1.0
"""


def run(folder, *words):
    """Return the exit code, the outputs, and the states that were saved."""
    done = subprocess.run(
        [sys.executable, *words, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(gapless.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    states = [(folder / f"{epoch}.pt").read_bytes() for epoch in range(4)]
    return done.returncode, done.stdout, done.stderr, states


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("forward = model", ""),
        # Else torch would advise it where it compiles, and not where the code is in its cache.
        (
            "torch.set_float32_matmul_precision('high'); forward = torch.compile(model)",
            "torch.compile is at work",
        ),
        (f"forward = model\n{GRAPH_OF_ITS_OWN}", "captures its step itself"),
    ],
    ids=["plain", "compiled", "graph_of_its_own"],
)
def test_a_script_trains_to_the_same_bits(tmp_path, monkeypatch, before, expected):
    """Its output, exit code and checkpoints are those of Python; one that is quick already is left alone."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    (tmp_path / "train.py").write_text(SCRIPT.format(before=before))
    code, out, err, states = run(tmp_path)

    found = run(tmp_path, "-m", "gapless", "run", "--report", "report.json")

    assert (code, out) == (4, found[1])
    assert found[0] == 4
    assert found[3] == states
    assert err in found[2]
    captured = json.loads((tmp_path / "report.json").read_text())
    assert expected in captured["why_nothing"]
    objects = captured["objects"]
    assert len(objects) == (0 if expected else 2)
    assert all(one["num_replays"] > 50 for one in objects)
    # Whether replays of one launch pay is a matter of times, and asked again after a thousand calls.
    networks = [one for one in objects if one["name"] == "Sequential"]
    assert all(one["num_eager"] < 0.1 * one["num_replays"] for one in networks), networks
