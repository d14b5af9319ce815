"""Everything about a tensor that the host knows without asking the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Conv1d(4, 4, 3, padding=1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    x = torch.randn(8, 4, 20, device=device)
    batch, channels, length = x.shape  # harmless: a shape
    if len(x) and x.numel() > 3 and x.dim() == 3 and x.size(0) == batch:  # harmless: shapes
        x = x.view(batch, channels, length)
    if x is None or not x.is_contiguous() or x.requires_grad:  # harmless: flags of the host
        continue
    name = f"{x.shape} {x.dtype} {x.device} {tuple(x.stride())}"  # harmless: no values
    key = (x.data_ptr(), id(x), hash(x))  # harmless: no values
    rows = list(x)  # harmless: views
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    grad_there = all(p.grad is not None for p in model.parameters())  # harmless: identity
