"""A generator moves each batch before it yields it."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def batches(count):
    for _ in range(count):
        x = torch.randn(64, 128)
        y = torch.randint(0, 5, (64,))
        yield x.to(device), y.to(device)  # waits: copy, 2 a step, static surely


net = nn.Linear(128, 5).to(device)
optimizer = torch.optim.Adam(net.parameters())
for x, y in batches(STEPS):  # step
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
