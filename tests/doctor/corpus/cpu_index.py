"""A permutation made on the host, and a list, index a tensor of the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.randn(4096, 16, device=device)
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):  # step
    index = torch.randperm(len(data))[:64]  # harmless: made on the host, of the host
    x = data[index]  # waits: cpu index, static maybe
    out = model(x)
    probe = out[[0, 5, 9]]  # waits: cpu index, static maybe
    first = out[0]  # harmless: a number of the host
    loss = out.square().mean() + probe.mean() + first.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
