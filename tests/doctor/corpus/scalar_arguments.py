"""Tensors of one value stand where torch takes a number; where it takes a tensor too, nothing is read."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scale = torch.tensor(0.5, device=device)
for _ in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    x = x * scale  # harmless: a product of tensors
    x = torch.clamp(x, max=scale)  # harmless: takes a tensor
    x = torch.add(x, x, alpha=scale)  # waits: item, static no
    noise = torch.full((32, 16), scale, device=device)  # waits: item, static no, unsure
    x = torch.where(x > 0, x, scale)  # harmless: takes a tensor
    loss = (model(x) + noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
