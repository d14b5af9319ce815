"""The next batch depends on the loss: a read that cannot be late."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
width = 1.0
for _ in range(STEPS):  # step
    x = torch.rand(64, 32, device=device) * width  # harmless: a number of the host
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    width = width * 1.1 if loss < 1 else max(width * 0.9, 0.1)  # waits: bool, static maybe
print(width)
