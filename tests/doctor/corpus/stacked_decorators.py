"""Three decorators around a function that only names tensors; one of another module reads them."""

import os

import torch
from torch import nn

from _closures import as_numbers, every

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@every(3)
@as_numbers
@torch.no_grad()
def statistics(loss):
    return {"loss": loss, "norm": model.weight.norm()}  # harmless: tensors


history = []
for _ in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(statistics(loss.detach()))  # harmless: the decorator reads
