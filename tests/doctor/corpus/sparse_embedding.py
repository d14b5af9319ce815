"""Sparse gradients are made unique in the optimizer."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
table = nn.Embedding(1000, 16, sparse=True).to(device)
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(STEPS):  # step
    ids = torch.randint(1000, (256,), device=device)
    loss = table(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # waits: optimizer, 1-20 a step, static maybe, unsure
