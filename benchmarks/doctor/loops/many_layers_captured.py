"""The same with model and optimizer captured."""

import torch
from _clock import Run
from torch import nn

import gapless


run = Run(steps=240)
width = run.size(128, 8)
torch.manual_seed(1)
layers = []
for _ in range(run.size(48, 2)):
    layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
model = nn.Sequential(*layers).to(run.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=run.on_gpu, capturable=run.on_gpu)
gapless.capture(model, optimizer)
x = torch.randn(64, width, device=run.device)
for _ in run.steps():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
run.say()
