"""A coroutine of the old kind keeps the mean: it is sent the losses, and reads them itself."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def running_mean():
    total, count, mean = 0.0, 0, None
    while True:
        loss = yield mean
        total += loss.item()  # waits: item, static maybe
        count += 1
        mean = total / count


def losses():
    model = nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):  # step
        loss = model(torch.randn(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()  # harmless: hands a tensor over


meter = running_mean()
next(meter)
for loss in losses():
    mean = meter.send(loss)  # harmless: the coroutine reads
print(mean)
