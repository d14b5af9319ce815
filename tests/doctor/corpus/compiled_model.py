"""A compiled model; the loss is read outside of it."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


@torch.compile(backend="eager")
def loss_of(logits, y):
    return nn.functional.cross_entropy(logits, y)


history = []
for _ in range(STEPS):  # step
    x, y = torch.randn(64, 16, device=device), torch.randint(4, (64,), device=device)
    loss = loss_of(compiled(x), y)  # harmless: compiled in the first steps
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())  # waits: item, static maybe
