"""A value is read, but only every 1000 steps, and in the first."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(32, 10).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(STEPS):  # step
    x = torch.randn(64, 32, device=device)
    loss = model(x).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 0:
        print(f"{step} {loss.item():.4f}")  # harmless: in the first step alone, before the window
