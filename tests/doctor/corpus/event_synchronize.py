"""Timed events, read at once."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0.0
for _ in range(STEPS):  # step
    if device == "cuda":
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        end.record()
        end.synchronize()  # waits: event, unseen, static maybe
        total += start.elapsed_time(end)  # harmless: both are done
print(total / STEPS)
