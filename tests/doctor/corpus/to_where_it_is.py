"""`.to` of what is there already."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    x = torch.randn(8, 16, device=device).to(device)  # harmless: there already
    x = x.to(torch.float32).to(x.device)  # harmless: there already
    y = net(x).to(dtype=torch.bfloat16).float()  # harmless: converted on the device
    mask = torch.ones_like(y).type_as(x).to(device, non_blocking=True)  # harmless: there already
    loss = (y * mask).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
