"""Spin until a copy is done."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
slot = torch.empty(())
if device == "cuda":
    slot = slot.pin_memory()
seen = []
for _ in range(STEPS):  # step
    x = torch.randn(4096 if device == "cuda" else 16, 1024, device=device)
    for _ in range(10):
        x = model(x).tanh()
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    slot.copy_(loss.detach(), non_blocking=True)  # harmless: into page-locked memory
    if device == "cuda":
        done = torch.cuda.Event()
        done.record()
        while not done.query():  # waits: query, 2-1000000 a step, unseen, static maybe
            time.sleep(0)
    seen.append(slot.item())  # harmless: on the host, and waited for
