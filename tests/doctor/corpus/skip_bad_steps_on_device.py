"""Steps that are not finite are undone on the device: nobody asks whether."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
skipped = torch.zeros((), device=device)
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    finite = torch.isfinite(loss).float()  # harmless: stays on the device
    for p in model.parameters():
        p.grad.nan_to_num_().mul_(finite)  # harmless: stays on the device
    optimizer.step()
    skipped += 1 - finite  # harmless: added up on the device
print(int(skipped))
