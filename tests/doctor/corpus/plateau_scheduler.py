"""ReduceLROnPlateau makes a float of its metric."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(10, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1000)
for _ in range(STEPS):  # step
    loss = model(torch.randn(20, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plateau.step(loss.detach())  # waits: optimizer
    lr = optimizer.param_groups[0]["lr"]  # harmless: a number of the host
