"""A row of tensors is written as JSON; the encoder asks a function what to do with them."""

import io
import json
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def plain(value):
    if isinstance(value, torch.Tensor):  # harmless: asks for the class
        return value.item()  # waits: item, 2 a step, static maybe
    raise TypeError(type(value))


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
out = io.StringIO()
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    row = {"step": step, "loss": loss.detach(), "norm": model.weight.detach().norm()}
    json.dump(row, out, default=plain)  # harmless: the function reads
