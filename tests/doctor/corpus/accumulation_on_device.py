"""Four microbatches a step; the sum of the losses stays on the device until the end."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
ACCUMULATE = 4
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running = torch.zeros((), device=device)
for micro in range(STEPS * ACCUMULATE):
    x = torch.randn(16, 32, device=device)
    loss = (model(x) - x).square().mean() / ACCUMULATE
    loss.backward()
    running += loss.detach()  # harmless: added up on the device
    if (micro + 1) % ACCUMULATE == 0:
        optimizer.step()  # step
        optimizer.zero_grad(set_to_none=True)
print(running.item() / STEPS)
