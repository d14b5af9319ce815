"""An optimizer that reads norms of its parameters."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # waits: optimizer, 1-40 a step, static maybe
