"""Decisions that stay on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hits = torch.zeros((), device=device)
for _ in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    out = model(x)
    finite = torch.isfinite(out)  # harmless: stays on the device
    out = torch.where(finite, out, torch.zeros_like(out))  # harmless: keeps the shape
    out = out.masked_fill(out > 5, 5.0)  # harmless: keeps the shape
    out = torch.nan_to_num(out)  # harmless: keeps the shape
    hits += (out.argmax(1) == 0).sum()  # harmless: added up on the device
    bad = torch.any(out != out)  # harmless: nobody reads it
    loss = out.square().mean() * (~bad).float()  # harmless: multiplied on the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
