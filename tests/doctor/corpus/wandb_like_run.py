"""Log a dict of numbers to a run object."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Run:
    def __init__(self):
        self.rows = []

    def log(self, row, step=None):
        self.rows.append((step, row))


run = Run()
model = nn.Linear(10, 3).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):  # step
    x, y = torch.randn(30, 10, device=device), torch.randint(3, (30,), device=device)
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # harmless: the norm stays on the device
    optimizer.step()
    scheduler.step()
    run.log(
        {
            "train/loss": loss.item(),  # waits: item, 3 a step, static surely
            "train/grad_norm": norm.item(),
            "train/accuracy": (logits.argmax(1) == y).float().mean().item(),
            "train/lr": scheduler.get_last_lr()[0],
        },
        step=step,
    )
