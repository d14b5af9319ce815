"""The same with a fused optimizer, which takes the scale on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler(device)
for _ in range(STEPS):  # step
    x = torch.randn(64, 64, device=device)
    y = torch.randint(10, (64,), device=device)
    with torch.autocast(device, dtype=dtype):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # harmless: a fused optimizer takes the scale on the device
    scaler.update()  # harmless: updated on the device
