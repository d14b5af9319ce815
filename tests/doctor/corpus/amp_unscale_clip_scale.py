"""Unscale, clip, step; and the scale is logged."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.LSTM(16, 32, batch_first=True).to(device)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
scales = []
for _ in range(STEPS):  # step
    out, _ = model(torch.randn(8, 10, 16, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # harmless: unscaled on the device
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # harmless: clipped on the device
    scaler.step(optimizer)  # waits: scaler, 0-1 a step, unsure
    scaler.update()
    scales.append(scaler.get_scale())  # waits: item, static maybe
