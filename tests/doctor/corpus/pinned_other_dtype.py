"""A page-locked batch of doubles, converted on the way."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
table = torch.rand(1024, 512, dtype=torch.float64)
if device == "cuda":
    table = table.pin_memory()
model = nn.Linear(512, 2).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    x = table.to(device, dtype=torch.float32, non_blocking=True)  # waits: pageable copy, 0-1 a step, unseen, static no, unsure
    loss = model(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
