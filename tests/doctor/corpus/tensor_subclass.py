"""Losses are of a class of their own, which knows how to read itself."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Logged(torch.Tensor):
    @property
    def value(self):
        return self.as_subclass(torch.Tensor).item()  # waits: item, static maybe

    def __float__(self):
        return super().__float__()  # waits: float, static no


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history, doubled = [], []
for _ in range(STEPS):  # step
    loss = model(torch.randn(8, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logged = loss.detach().as_subclass(Logged)  # harmless: another class, no copy
    doubled.append(logged * 2)  # harmless: on the device
    history.append((logged.value, float(logged)))  # harmless: the class reads, on lines of its own
