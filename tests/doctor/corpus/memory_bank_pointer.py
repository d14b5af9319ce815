"""A queue of keys on the device, its pointer on the host."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.Linear(16, 8).to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
bank = torch.randn(512, 8, device=device)
pointer = 0
for _ in range(STEPS):  # step
    keys = nn.functional.normalize(encoder(torch.randn(32, 16, device=device)), dim=1)
    logits = keys @ keys.T
    logits.fill_diagonal_(-10.0)  # harmless: filled on the device
    loss = logits.logsumexp(1).mean() + (keys @ bank.T).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bank[pointer : pointer + 32] = keys.detach()  # harmless: bounds of the host
    pointer = int((pointer + 32) % len(bank))  # harmless: numbers of the host
