"""Page-locks each batch of the main thread, with lengths that change."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):  # step
    x = torch.randn(1000 * (step + 1), 64)
    if device == "cuda":
        x = x.pin_memory()  # waits: host allocation, 0-1 a step, unseen, static maybe, unsure
        x = x.to(device, non_blocking=True)  # harmless: page-locked
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
