"""A lambda as a hook keeps the norms of gradients."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
norms = []
model = nn.Linear(8, 8).to(device)
model.weight.register_hook(
    lambda grad: norms.append(grad.norm().cpu())  # waits: cpu, in autograd
)
kept = []
model.bias.register_hook(lambda grad: kept.append(grad.detach()))  # harmless: stays on the device
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
