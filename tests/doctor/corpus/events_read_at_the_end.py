"""Timed events, read after the loop."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
marks = []
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()  # harmless: queued
        marks.append(mark)
if marks:
    marks[-1].synchronize()
    print(marks[0].elapsed_time(marks[-1]))
