"""Nested results are brought to the host by a function with a form for each type."""

import os
from functools import singledispatch

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


@singledispatch
def to_host(value):
    return value


@to_host.register
def _(value: torch.Tensor):
    return value.detach().cpu()  # waits: cpu, 3 a step, static maybe


@to_host.register
def _(value: dict):
    return {name: to_host(one) for name, one in value.items()}  # harmless: asks the other forms


@to_host.register
def _(value: list):
    return [to_host(one) for one in value]  # harmless: asks the other forms


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for step in range(STEPS):  # step
    out = model(torch.randn(32, 16, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(to_host({"step": step, "loss": loss, "rows": [out[0], out[1]]}))  # harmless: the form for tensors copies
