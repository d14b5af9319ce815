"""A decorator that measures what it decorates."""

import functools
import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        begin = time.monotonic()
        result = function(*args, **kwargs)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # waits: device, unseen, static surely
        wrapper.seconds += time.monotonic() - begin
        return result

    wrapper.seconds = 0.0
    return wrapper


@timed
def train_step(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


net = nn.Linear(32, 32).to(device)
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    train_step(net, sgd, torch.randn(16, 32, device=device))
print(train_step.seconds)
