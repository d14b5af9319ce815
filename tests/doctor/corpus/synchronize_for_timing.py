"""Timing of each step with the host's clock."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).to(device)
optimizer = torch.optim.AdamW(model.parameters())
times = []
for _ in range(STEPS):  # step
    start = time.perf_counter()
    loss = model(torch.randn(4, 10, 32, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device.type == "cuda":  # harmless: a string of the host
        torch.cuda.synchronize()  # waits: device, unseen, static surely
    times.append(time.perf_counter() - start)
print(sum(times) / len(times))
