"""`.to("cpu")` is a copy that waits; with non_blocking and page-locked memory it is not."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Conv2d(3, 8, 3, padding=1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(STEPS):  # step
    images = torch.randn(4, 3, 32, 32, device=device)
    out = net(images)
    loss = out.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    grid = out[0].detach().to("cpu")  # waits: cpu, static surely
    assert grid.device.type == "cpu"  # harmless: nothing of a tensor's values
