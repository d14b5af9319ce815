"""Tensors of the host beside a model on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = torch.zeros(STEPS)
generator = torch.Generator().manual_seed(1)
for step in range(STEPS):  # step
    width = torch.randint(1, 9, (1,), generator=generator).item()  # harmless: on the host
    history[step] = width  # harmless: on the host
    wide = history[history > 4].tolist()  # harmless: on the host
    first = history.nonzero()  # harmless: on the host
    if history.sum() > 1e9:  # harmless: on the host
        break
    values = history.numpy()  # harmless: on the host
    loss = model(torch.randn(4, 8, device=device)).square().mean() * width
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(int(history.max()), wide[:1], values[:1])
