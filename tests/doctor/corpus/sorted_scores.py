"""Python's `sorted` compares tensors, two at a time."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
scorer = nn.Linear(12, 1).to(device)
with torch.no_grad():
    for _ in range(STEPS):  # step of no optimizer
        scores = scorer(torch.randn(6, 12, device=device)).squeeze(1)
        order = sorted(range(6), key=lambda i: scores[i])  # waits: bool, 5-20 a step, static no
        ranked = scores.sort(descending=True).indices  # harmless: sorted on the device
print(order, ranked)
