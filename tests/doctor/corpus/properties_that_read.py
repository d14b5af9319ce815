"""Attributes of harmless looks read values: a property, a cached one, `__getattr__`, `__str__`."""

import os
from functools import cached_property

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Result:
    def __init__(self, loss, **values):
        self.loss = loss
        self.values = values

    @property
    def is_fine(self):
        return bool(self.loss.isfinite())  # waits: bool, static maybe

    @cached_property
    def number(self):
        return float(self.loss)  # waits: float, static maybe

    def __getattr__(self, name):
        try:
            return self.__dict__["values"][name].item()  # waits: item, static maybe
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self):
        return f"{self.values['norm']:.3f}"  # waits: format, static maybe


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lines = []
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    result = Result(loss.detach(), norm=model.weight.detach().norm())
    if result.is_fine:  # harmless: the property reads
        lines.append(f"{result} {result.number} {result.number:.2f}")  # harmless: read elsewhere, the second from the cache
    lines.append(result.norm)  # harmless: read elsewhere
