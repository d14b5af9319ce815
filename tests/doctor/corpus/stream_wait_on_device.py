"""A copy stream, ordered by the device itself."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
side = torch.cuda.Stream() if cuda else None
host = torch.randn(64, 256)
host = host.pin_memory() if cuda else host
model = nn.Linear(256, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    if cuda:
        with torch.cuda.stream(side):
            x = host.to(device, non_blocking=True)  # harmless: page-locked
            ready = torch.cuda.Event()
            ready.record()  # harmless: queued
        torch.cuda.current_stream().wait_event(ready)  # harmless: the device waits, not the host
        side.wait_stream(torch.cuda.current_stream())  # harmless: the device waits, not the host
        x.record_stream(torch.cuda.current_stream())  # harmless: a note of the allocator
    else:
        x = host
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
