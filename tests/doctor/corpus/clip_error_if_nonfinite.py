"""Clipping that raises if the norm is not finite."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.GRU(8, 16).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):  # step
    out, _ = model(torch.randn(20, 4, 8, device=device))
    optimizer.zero_grad()
    out.square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # waits: clip, static surely
    optimizer.step()
