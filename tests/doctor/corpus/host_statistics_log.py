"""Everything that is logged is known on the host."""

import json
import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}])
rows = []
seen = 0
start = time.perf_counter()
for step in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len(x)  # harmless: a shape
    rate = seen / (time.perf_counter() - start)  # harmless: numbers of the host
    row = {"step": step, "lr": float(optimizer.param_groups[0]["lr"]), "rate": round(rate, 1)}  # harmless: numbers of the host
    rows.append(json.dumps(row))  # harmless: numbers of the host
    print(f"{step} {rate:.1f} samples/s, batch {tuple(x.shape)}, {sum(p.numel() for p in model.parameters())} weights")  # harmless: nothing of a tensor's values
