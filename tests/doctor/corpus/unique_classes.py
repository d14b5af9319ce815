"""Segmentation: which classes occur in this batch."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Conv2d(3, 6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    image = torch.randn(2, 3, 32, 32, device=device)
    mask = torch.randint(6, (2, 32, 32), device=device)
    loss = nn.functional.cross_entropy(model(image), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    present = torch.unique(mask)  # waits: shape, 1-3 a step, static surely
    num_present = present.numel()  # harmless: a shape
