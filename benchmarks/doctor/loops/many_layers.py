"""Many small layers: the device waits for launches, not the host for the device."""

import torch
from _clock import Run
from torch import nn


run = Run(steps=240)
width = run.size(128, 8)
torch.manual_seed(1)
layers = []
for _ in range(run.size(48, 2)):
    layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
model = nn.Sequential(*layers).to(run.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=run.on_gpu, capturable=run.on_gpu)
x = torch.randn(64, width, device=run.device)
for _ in run.steps():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
run.say()
