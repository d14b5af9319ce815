"""The worst losses are kept in a heap, which compares tensors."""

import heapq
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worst = [(torch.tensor(-1.0 - i, device=device), -i) for i in range(4)]
heapq.heapify(worst)
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    entry = (loss.detach(), step)  # harmless: a pair
    heapq.heappushpop(worst, entry)  # waits: bool, 1-20 a step, static no
