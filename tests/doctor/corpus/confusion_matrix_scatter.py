"""A confusion matrix that stays on the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 7
model = nn.Linear(12, CLASSES).to(device).eval()
matrix = torch.zeros(CLASSES * CLASSES, device=device)
ones = torch.ones(256, device=device)
with torch.inference_mode():
    for _ in range(STEPS):  # step of no optimizer
        x = torch.randn(256, 12, device=device)
        y = torch.randint(CLASSES, (256,), device=device)
        guess = model(x).argmax(1)
        matrix.scatter_add_(0, y * CLASSES + guess, ones)  # harmless: its size is given
print(matrix.view(CLASSES, CLASSES).diag().sum().item() / matrix.sum().item())
