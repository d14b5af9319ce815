"""Debug output that was forgotten: a vector of the device, printed in each step."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
w = torch.randn(16, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for _ in range(STEPS):  # step
    x = torch.randn(64, 16, device=device)
    per_class = (x @ w).relu().mean(0)
    per_class.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(per_class)  # waits: print, 4-60 a step, unsure
