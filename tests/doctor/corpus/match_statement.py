"""A match statement over a value that is read, with a guard that reads another."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
limit = torch.tensor(1e9, device=device)
calm = 0
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    match loss.item():  # waits: item, static surely
        case float(value) if value > limit:  # waits: bool, static maybe
            break
        case float() if step > 10**9:  # harmless: numbers of the host
            break
        case _:
            calm += 1  # harmless: a number of the host
