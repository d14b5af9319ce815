"""The sum of losses is read in bulk, every twenty steps."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(32, 10).to(device)
optimizer = torch.optim.Adam(model.parameters())
losses = []
for step in range(1, STEPS + 1):  # step
    loss = model(torch.randn(64, 32, device=device)).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())  # harmless: kept on the device
    if step % 20 == 0:
        mean = torch.stack(losses).mean().item()  # waits: item, 1/20 a step, static surely
        losses.clear()
