"""The read stands in the middle of an expression of several lines."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
smoothed = 0.0
for _ in range(STEPS):  # step
    x = torch.randn(40, 6, device=device)
    loss = model(x).exp().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoothed = (
        0.9 * smoothed
        + 0.1
        * loss.detach()
        .float()
        .item()  # waits: item, static surely
    )
