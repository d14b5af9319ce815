"""The value to fill with lives on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
attention = nn.Linear(16, 16).to(device)
floor = torch.full((), -1e4, device=device)
optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    scores = attention(torch.randn(8, 16, device=device))
    hidden = torch.rand(8, 16, device=device) < 0.2
    masked = scores.masked_fill(hidden, floor)  # waits: float, static no, unsure
    chosen = torch.where(hidden, floor, scores)  # harmless: both are on the device
    loss = masked.softmax(-1).square().mean() + chosen.softmax(-1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
