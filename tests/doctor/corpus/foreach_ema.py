"""A teacher's weights, moved with foreach operations."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
student, teacher = nn.Linear(16, 16).to(device), nn.Linear(16, 16).to(device).requires_grad_(False)
optimizer = torch.optim.NAdam(student.parameters())
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=STEPS + 1)
for step in range(STEPS):  # step
    x = torch.randn(8, 16, device=device)
    loss = (student(x) - teacher(x).detach()).square().mean()  # harmless: no copy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # harmless: its counts are on the host
    scheduler.step()
    decay = min(0.99, (1 + step) / (10 + step))  # harmless: numbers of the host
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - decay)  # harmless: a number of the host
