"""The rate depends on the loss: the scheduler calls a lambda that reads it."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
smooth = torch.ones((), device=device)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lr_lambda=lambda epoch: min(
        1.0,
        smooth.item(),
    ),  # waits: item, static maybe
)
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth.lerp_(loss.detach(), 0.1)  # harmless: on the device
    scheduler.step()  # harmless: the lambda reads
    rate = optimizer.param_groups[0]["lr"]  # harmless: a number of the host
