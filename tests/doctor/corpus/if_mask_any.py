"""Only use the hard examples, if there are any."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(16, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(STEPS):  # step
    x = torch.randn(64, 16, device=device)
    y = torch.randint(3, (64,), device=device)
    losses = F.cross_entropy(net(x), y, reduction="none")
    hard = losses > losses.mean()
    if hard.any():  # waits: bool, static surely
        loss = losses[hard].mean()  # waits: shape; waits: shape, 0-2 a step, in autograd, static no, unsure
    else:
        loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
