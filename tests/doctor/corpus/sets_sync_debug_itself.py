"""The script guards its step with torch's own debug mode, and turns it off for what may wait."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
counts = []
for _ in range(STEPS):  # step
    if cuda:
        torch.cuda.set_sync_debug_mode("error")  # harmless: nothing waits until it is off again
    x = torch.randn(32, 16, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if cuda:
        torch.cuda.set_sync_debug_mode("default")
    places = (x > 2).nonzero()  # waits: shape, unseen, static surely
    counts.append(places.shape[0])  # harmless: a size
