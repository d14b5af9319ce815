"""Constants as buffers of a module; numbers of the host in arithmetic."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Normalize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))  # harmless: once, on the host

    def forward(self, x):
        offset = torch.tensor(0.5)  # harmless: one value of the host, passed as a number
        return (x - self.mean) / 0.225 + offset  # harmless: arithmetic with a number


net = nn.Sequential(Normalize(), nn.Linear(3, 3)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    loss = net(torch.rand(64, 3, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
