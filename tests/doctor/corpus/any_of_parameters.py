"""`any` and `all` of Python over tensors stop early, one read at a time."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    broken = any(p.grad.isinf().any() for p in model.parameters())  # waits: bool, 4 a step, static surely
    missing = any(p.grad is None for p in model.parameters())  # harmless: identity
    if not broken:  # harmless: a flag of the host
        optimizer.step()
