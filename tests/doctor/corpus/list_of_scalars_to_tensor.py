"""`torch.tensor` of a list of tensors reads each of them."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
models = [nn.Linear(8, 1).to(device) for _ in range(3)]
optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.01)
for _ in range(STEPS):  # step
    x = torch.randn(32, 8, device=device)
    losses = [m(x).square().mean() for m in models]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()  # harmless: stacked on the device
    optimizer.step()
    summary = torch.tensor([one.detach() for one in losses])  # waits: item, 3 a step, static maybe
print(summary)
