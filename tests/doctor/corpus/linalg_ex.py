"""Forms of the solvers that leave the check to the caller."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
eye = torch.eye(16, device=device)
total = torch.zeros((), device=device)
for _ in range(STEPS):  # step of no optimizer
    a = torch.randn(16, 16, device=device)
    spd = a @ a.T + eye
    factor, info = torch.linalg.cholesky_ex(spd)  # harmless: nothing is checked
    total += torch.linalg.norm(factor) + torch.linalg.vecdot(a, a).sum()  # harmless: on the device
print(total)
