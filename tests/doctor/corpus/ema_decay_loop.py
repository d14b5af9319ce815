"""A moving average of the weights; a decay on the device is read for `alpha`."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(16, 16).to(device)
ema = nn.Linear(16, 16).to(device)
ema.load_state_dict(model.state_dict())
keep = torch.tensor(0.01, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    loss = (model(torch.randn(8, 16, device=device)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)  # harmless: numbers of the host
            slow.add_(fast - slow, alpha=keep)  # waits: float, 2 a step, static no
            slow.lerp_(fast, keep)  # harmless: the weight stays on the device
