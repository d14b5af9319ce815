"""Loss, accuracy and gradient norm are read in every step, to be added up and printed."""

import sys

import torch
from _clock import Run, host_work
from torch import nn


run = Run(steps=120)
width = run.size(4096, 32)
torch.manual_seed(1)
blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(run.size(6, 2))]
model = nn.Sequential(*blocks, nn.Linear(width, 10)).to(run.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(run.size(1024, 8), width, device=run.device)
y = torch.randint(10, (len(x),), device=run.device)
running = right = norms = 0.0
for step in run.steps():
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    running += loss.item()
    right += (logits.argmax(1) == y).sum().item()
    norms += norm.item()
    if step % 50 == 49:
        print(f"{step}: {running / 50:.4f} {right / 50:.1f} {norms / 50:.4f}", file=sys.stderr)
        running = right = norms = 0.0
    host_work(run.size(4.0, 0.1))
run.say()
