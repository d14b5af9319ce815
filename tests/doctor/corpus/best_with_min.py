"""`min` and `max` of Python compare tensors."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
p = torch.randn(1000, device=device, requires_grad=True)
optimizer = torch.optim.Adam([p], lr=0.01)
best = torch.tensor(float("inf"), device=device)
largest = max(3, 5)  # harmless: numbers of the host
for step in range(STEPS):  # step
    loss = p.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = min(best, loss.detach())  # waits: bool
print(best)
