"""The same with a size that the loader knows."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(16, 16).to(device)
optimizer = torch.optim.Adam(net.parameters())
durations = torch.arange(1, 5).repeat(5).to(device)
total = 50
for _ in range(STEPS):  # step
    states = torch.randn(20, 16, device=device)
    frames = torch.repeat_interleave(net(states), durations, dim=0, output_size=total)  # harmless: the size is given
    loss = frames.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
