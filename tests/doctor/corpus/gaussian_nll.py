"""A loss of torch that looks whether all variances are positive."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(8, 2).to(device)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(STEPS):  # step
    x = torch.randn(64, 8, device=device)
    mean, log_var = net(x).chunk(2, dim=1)  # harmless: views
    loss = nn.functional.gaussian_nll_loss(mean, x[:, :1], log_var.exp())  # waits: validation, static no
    other = nn.functional.poisson_nll_loss(mean, x[:, :1].abs())  # harmless: nothing is checked
    optimizer.zero_grad()
    (loss + 0.01 * other).backward()
    optimizer.step()
