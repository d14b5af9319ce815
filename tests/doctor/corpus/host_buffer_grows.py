"""Each result is copied to page-locked memory that is kept: the pool grows."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(256, 256).to(device)
kept = []
with torch.no_grad():
    for step in range(STEPS):  # step of no optimizer
        out = model(torch.randn(1024, 256, device=device))
        kept.append(out.to("cpu", non_blocking=True))  # waits: host allocation, 0-1 a step, unseen, static no, unsure
if device.type == "cuda":
    torch.cuda.synchronize()
print(torch.stack(kept).mean().item())
