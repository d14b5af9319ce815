"""The area of boxes by `prod`: its backward pass looks for zeros."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
head = nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    sizes = head(torch.randn(32, 16, device=device)).exp()
    log_area = sizes.prod().clamp(max=10)  # waits: shape, 1-2 a step, in autograd, static no, unsure
    loss = sizes.mean() + log_area
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
