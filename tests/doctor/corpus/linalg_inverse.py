"""Gaussian processes: solvers that check whether they succeeded."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
log_scale = nn.Parameter(torch.zeros((), device=device))
optimizer = torch.optim.Adam([log_scale], lr=0.01)
eye = torch.eye(32, device=device)
x = torch.linspace(0, 1, 32, device=device)
y = torch.sin(6 * x)
for _ in range(STEPS):  # step
    kernel = torch.exp(-((x[:, None] - x[None]) ** 2) * log_scale.exp() * 10) + eye
    factor = torch.linalg.cholesky(kernel)  # waits: linalg, 1-3 a step, static maybe
    alpha = torch.cholesky_solve(y[:, None], factor)  # harmless: nothing is checked
    inverse = torch.linalg.inv(kernel.detach())  # waits: linalg, 1-3 a step, static maybe
    loss = 0.5 * (y @ alpha).sum() + factor.diagonal().log().sum() + 0 * inverse.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
