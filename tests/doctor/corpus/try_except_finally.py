"""Values are read where an exception is handled, and at the end of every step."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
spikes, history = [], []


def look_at(step):
    if step % 5 == 3:
        raise FloatingPointError("a spike")


for step in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    try:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        look_at(step)
    except FloatingPointError:
        spikes.append(float(loss.detach()))  # waits: float, 1/5 a step, static maybe
    else:
        history.append(loss.detach())  # harmless: keeps a tensor
    finally:
        last = loss.detach().cpu()  # waits: cpu, static surely
