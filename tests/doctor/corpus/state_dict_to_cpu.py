"""Weights copied to the host in a comprehension."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    weights = {
        name: value.cpu()  # waits: cpu, 2 a step, static maybe
        for name, value in model.state_dict().items()
    }
