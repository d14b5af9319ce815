"""Hooks of the optimizer: one before its step reads, one behind it does not."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.AdamW(model.parameters())
norms, means = [], []


def before(optimizer, args, kwargs):
    norms.append(model.weight.grad.norm().item())  # waits: item, static maybe


def behind(optimizer, args, kwargs):
    means.append(model.weight.detach().mean())  # harmless: keeps a tensor


optimizer.register_step_pre_hook(before)
optimizer.register_step_post_hook(behind)
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # harmless: the hook reads
