"""Several losses, read one by one in a comprehension."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
trunk = nn.Linear(16, 32).to(device)
heads = nn.ModuleDict({name: nn.Linear(32, 1) for name in ("box", "cls", "obj")}).to(device)
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
log = []
for _ in range(STEPS):  # step
    h = trunk(torch.randn(64, 16, device=device)).relu()
    losses = {name: head(h).square().mean() for name, head in heads.items()}
    total = sum(losses.values())  # harmless: a sum of tensors is a tensor
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    log.append({name: value.item() for name, value in losses.items()})  # waits: item, 3 a step
