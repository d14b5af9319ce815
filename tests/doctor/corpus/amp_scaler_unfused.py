"""Mixed precision with a GradScaler and an optimizer that is not fused."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler(device)
for _ in range(STEPS):  # step
    x = torch.randn(64, 64, device=device)
    y = torch.randint(10, (64,), device=device)
    with torch.autocast(device, dtype=dtype):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # waits: scaler, static maybe
    scaler.update()  # harmless: updated on the device
