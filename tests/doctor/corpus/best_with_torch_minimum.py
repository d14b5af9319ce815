"""The same, kept on the device."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
p = torch.randn(1000, device=device, requires_grad=True)
optimizer = torch.optim.Adam([p], lr=0.01)
best = torch.full((), float("inf"), device=device)  # harmless: filled on the device
for step in range(STEPS):  # step
    loss = p.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = torch.minimum(best, loss.detach())  # harmless: stays on the device
    better = torch.where(loss < best, loss, best)  # harmless: stays on the device
print(best.item(), better.item())
