"""Expand states by durations, as speech synthesis does."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(16, 16).to(device)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(STEPS):  # step
    states = torch.randn(20, 16, device=device)
    durations = torch.randint(1, 5, (20,), device=device)
    frames = torch.repeat_interleave(net(states), durations, dim=0)  # waits: shape, 2 a step, static maybe
    twice = states.repeat_interleave(2, dim=0)  # harmless: a number of the host
    loss = frames.square().mean() + twice.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
