"""Mixup draws its weight with numbers of the host, its order on the device."""

import os
import random

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Conv2d(3, 10, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
beta = torch.distributions.Beta(0.4, 0.4)
for _ in range(STEPS):  # step
    x = torch.randn(16, 3, 8, 8, device=device)
    y = torch.randint(10, (16,), device=device)
    lam = random.betavariate(0.4, 0.4)  # harmless: a number of the host
    other = beta.sample().item()  # harmless: drawn on the host
    order = torch.randperm(16, device=device)  # harmless: drawn on the device
    x = lam * x + (1 - lam) * x[order]  # harmless: indices of the device
    top, left = random.randrange(4), int(other * 4)  # harmless: numbers of the host
    x[:, :, top : top + 4, left : left + 4] = 0.0  # harmless: bounds of the host
    out = net(x).flatten(1)
    loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
