"""Least squares inside an evaluation loop."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
errors = torch.zeros((), device=device)
for _ in range(STEPS):  # step of no optimizer
    features = torch.randn(128, 8, device=device)
    targets = torch.randn(128, 2, device=device)
    solution = torch.linalg.lstsq(features, targets).solution  # waits: linalg, 1-8 a step, static maybe
    errors += torch.linalg.vector_norm(features @ solution - targets)  # harmless: stays on the device
print(errors.item())
