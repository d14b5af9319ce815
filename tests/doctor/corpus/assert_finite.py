"""Assertions on tensors are reads."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
opt = torch.optim.RMSprop(encoder.parameters(), lr=1e-3)
for step in range(STEPS):  # step
    x = torch.randn(100, 10, device=device)
    assert x.shape == (100, 10), x.shape  # harmless: shapes are known on the host
    z = encoder(x)
    assert torch.isfinite(z).all(), f"z is not finite at {step}"  # waits: bool, static surely
    assert not z.isnan().any()  # waits: bool, static surely
    loss = (z.norm(dim=1) - 1).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
