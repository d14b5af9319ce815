"""A static input, filled from ordinary memory by `copy_`."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
static_x = torch.empty(128, 64, device=device)
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
host = torch.randn(10, 128, 64)
for step in range(STEPS):  # step
    static_x.copy_(host[step % 10])  # waits: copy, static maybe
    previous = static_x.clone()  # harmless: on the device
    previous.copy_(static_x)  # harmless: on the device
    loss = model(static_x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
