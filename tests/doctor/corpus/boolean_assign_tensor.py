"""Assigning a tensor where a mask is true needs the number of places; a number does not."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
denoiser = nn.Linear(64, 64).to(device)
opt = torch.optim.AdamW(denoiser.parameters())
fill = torch.tensor(0.5, device=device)
for _ in range(STEPS):  # step
    clean = torch.randn(32, 64, device=device)
    noisy = clean.clone()
    holes = torch.rand_like(noisy) < 0.3
    noisy[holes] = 0.0  # harmless: a number fills under a mask
    noisy[clean > 2] = fill  # waits: shape, unsure
    loss = (denoiser(noisy) - clean).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
