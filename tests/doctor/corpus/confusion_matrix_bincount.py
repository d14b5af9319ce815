"""A confusion matrix by `bincount`, which looks at its largest and smallest value."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 7
model = nn.Linear(12, CLASSES).to(device).eval()
matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=device)
with torch.no_grad():
    for _ in range(STEPS):  # step of no optimizer
        x = torch.randn(256, 12, device=device)
        y = torch.randint(CLASSES, (256,), device=device)
        guess = model(x).argmax(1)
        cells = torch.bincount(y * CLASSES + guess, minlength=CLASSES**2)  # waits: shape, 1-2 a step, static maybe
        matrix += cells.reshape(CLASSES, CLASSES)
print(matrix.diag().sum() / matrix.sum())
