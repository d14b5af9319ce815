"""A context manager that waits before and after."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Timer:
    def __init__(self):
        self.seconds = 0.0

    def _sync(self):
        if torch.cuda.is_available():  # harmless: asks nobody to wait
            torch.cuda.synchronize()  # waits: device, 4 a step, unseen, static surely

    def __enter__(self):
        self._sync()
        self.start = time.time()
        return self

    def __exit__(self, *_):
        self._sync()
        self.seconds += time.time() - self.start


forward, backward = Timer(), Timer()
model = nn.Linear(128, 128).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    with forward:
        loss = model(torch.randn(64, 128, device=device)).square().mean()
    with backward:
        opt.zero_grad()
        loss.backward()
        opt.step()
print(forward.seconds, backward.seconds)
