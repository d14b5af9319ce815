"""Four microbatches a step; the loss of each is read."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
ACCUMULATE = 4
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running = 0.0
for micro in range(STEPS * ACCUMULATE):
    x = torch.randn(16, 32, device=device)
    loss = (model(x) - x).square().mean() / ACCUMULATE
    loss.backward()
    running += loss.item()  # waits: item, 4 a step, static surely
    if (micro + 1) % ACCUMULATE == 0:
        optimizer.step()  # step
        optimizer.zero_grad()
print(running / STEPS)
