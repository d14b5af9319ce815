"""A checkpoint every ten steps."""

import copy
import io
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, STEPS + 1):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        best = copy.deepcopy(model.state_dict())  # harmless: copied on the device
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)  # waits: save, 4/10-8 a step, static maybe
