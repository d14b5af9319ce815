"""Permutations and samples made on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.randn(4096, 16, device=device)
weights = torch.rand(4096, device=device)
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):  # step
    index = torch.randperm(len(data), device=device)[:64]  # harmless: made on the device
    hard = torch.multinomial(weights, 16, replacement=True)  # harmless: drawn on the device
    x = torch.cat([data[index], data.index_select(0, hard)])  # harmless: indices of the device
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
