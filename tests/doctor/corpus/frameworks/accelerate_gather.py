"""Accelerate: metrics are gathered, then brought to the host."""

import os

import torch
from _needs import needs

needs("accelerate")
from accelerate import Accelerator

STEPS = int(os.environ.get("CASE_STEPS", 60))
accelerator = Accelerator()
data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(4, (STEPS * 8,)))
model, loader = accelerator.prepare(torch.nn.Linear(16, 4), torch.utils.data.DataLoader(data, 8))
guesses = []
with torch.no_grad():
    for x, y in loader:  # step; waits: copy, 0-3 a step, static no, unsure
        out = model(x).argmax(-1)
        out, y = accelerator.gather_for_metrics((out, y))
        guesses.append((out == y).cpu())  # waits: cpu
print(torch.cat(guesses).float().mean())
