"""Batch norm with a cumulative average counts on the device and reads the count."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8, momentum=None)
        self.usual = nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.norm(self.conv(x))  # waits: float, static no
        return self.usual(x)  # harmless: a fixed momentum


net = Block().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    loss = net(torch.randn(4, 3, 16, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
