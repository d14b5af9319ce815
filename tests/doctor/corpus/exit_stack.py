"""Values are read when context managers end: one of a generator, and a callback of a stack."""

import os
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
history, norms = [], []


@contextmanager
def tracked():
    holder = {}
    try:
        yield holder
    finally:
        history.append(float(holder["loss"]))  # waits: float, static maybe


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    with ExitStack() as stack:
        stack.callback(lambda: norms.append(model.weight.grad.norm().item()))  # waits: item
        holder = stack.enter_context(tracked())
        loss = model(torch.randn(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        holder["loss"] = loss.detach()  # harmless: keeps a tensor
