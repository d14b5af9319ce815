"""A timer stops when it is freed, and waits for the device to be exact."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
seconds = []


class Section:
    def __init__(self):
        self.begin = time.perf_counter()

    def __del__(self):
        if device == "cuda":
            torch.cuda.synchronize()  # waits: device, unseen, static surely
        seconds.append(time.perf_counter() - self.begin)


model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(x):
    section = Section()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(STEPS):  # step
    train_step(torch.randn(32, 64, device=device))  # harmless: the wait is in the timer
print(sum(seconds))
