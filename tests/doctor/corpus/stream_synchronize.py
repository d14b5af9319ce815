"""A copy stream whose end the host waits for."""

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
        with torch.cuda.stream(side):  # harmless: only names a stream
            x = host.to(device, non_blocking=True)  # harmless: page-locked
        side.synchronize()  # waits: stream, static maybe
    else:
        x = host
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if cuda:
        torch.cuda.current_stream().synchronize()  # waits: stream, static surely
