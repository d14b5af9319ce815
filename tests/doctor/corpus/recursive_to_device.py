"""A nested batch, moved by a helper of another module that everyone has written once."""

import os

import torch
from torch import nn
from _moving import to_device

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(32, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [{"x": torch.randn(8, 32), "y": [torch.randint(2, (8,))], "id": 7} for _ in range(4)]
for step in range(STEPS):  # step
    batch = to_device(batches[step % 4], device)
    loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"][0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
