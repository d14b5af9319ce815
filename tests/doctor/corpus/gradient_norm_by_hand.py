"""The norm of the gradients, read parameter by parameter, as an old recipe does."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norms = []
for _ in range(STEPS):  # step
    optimizer.zero_grad()
    model(torch.randn(32, 8, device=device)).square().mean().backward()
    total = 0.0
    for p in model.parameters():
        param_norm = p.grad.data.norm(2)  # harmless: a norm stays on the device
        total += param_norm.item() ** 2  # waits: item, 4 a step, static surely
    norms.append(total**0.5)
    optimizer.step()
