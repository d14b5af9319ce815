"""The same mean, with shapes that stay."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Conv2d(1, 1, 3, padding=1).to(device)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(STEPS):  # step
    depth = torch.rand(4, 1, 24, 24, device=device)
    valid = depth > 0.1
    error = (net(depth) - depth).abs()
    error = torch.where(valid, error, 0.0)  # harmless: three arguments keep the shape
    loss = error.sum() / valid.sum().clamp(min=1)  # harmless: divided on the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
