"""What the allocator knows of itself, in each step."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
peak = 0
for _ in range(STEPS):  # step
    loss = model(torch.randn(200, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if torch.cuda.is_available():  # harmless: asks nobody to wait
        peak = max(peak, torch.cuda.max_memory_allocated())  # harmless: a count of the host
        used = torch.cuda.memory_allocated() / 2**20  # harmless: a count of the host
        torch.cuda.reset_peak_memory_stats()  # harmless: a count of the host
    count = torch.cuda.device_count()  # harmless: asks nobody to wait
print(peak)
