"""Train a small classifier and read the loss of each step."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0.0
for step in range(STEPS):  # step
    x = torch.randn(128, 64, device=device)
    y = torch.randint(10, (128,), device=device)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.item()  # waits: item, static surely
print(f"mean loss {running / STEPS:.3f}")
