"""Mixed precision without a scaler."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
for step in range(STEPS):  # step
    x = torch.randn(64, 64, device=device)
    y = torch.randint(10, (64,), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)  # harmless: clipped on the device
    optimizer.step()
    scheduler.step()  # harmless: learning rates are numbers of the host
    lr = float(scheduler.get_last_lr()[0])  # harmless: a number of the host
