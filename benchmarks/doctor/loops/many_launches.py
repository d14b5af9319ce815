"""A step of about 1,200 launches that reads values, and notes how long each step took.

Beside the time of a step it notes who watches it: "times" while a profiler runs, "sites" while
something stands in for `Tensor.item`, else "plain".
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn


ITEM = vars(torch.Tensor).get("item")

parser = argparse.ArgumentParser()
parser.add_argument("--waits", type=int, default=0)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--num-steps", type=int, default=260)
parser.add_argument("--small", action="store_true")
chosen = parser.parse_args()
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
num_steps, links = (40, 60) if chosen.small else (chosen.num_steps, 570)
reads_at = {(place + 1) * links // (chosen.waits + 1) for place in range(chosen.waits)}
model = nn.Linear(256, 256).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(64, 256, device=device)


def watched():
    """Return who watches this step."""
    if torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
        return "times"
    return "sites" if vars(torch.Tensor).get("item") is not ITEM else "plain"


steps, total = [], 0.0
for _ in range(num_steps):
    began, phase = time.perf_counter(), watched()
    y = model(x)
    for link in range(links):
        y = y * 0.9999
        if link in reads_at:
            total += y[0, 0].item()
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps.append((1000 * (time.perf_counter() - began), phase))
chosen.out.write_text(json.dumps(steps))
