"""Activations are computed again in the backward pass, up to the last one that is needed: not the read."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.largest = 0.0

    def forward(self, x):
        x = self.linear(x).relu()
        self.largest = x.detach().max().item()  # waits: item
        return x


gate, plain = Gate().to(device), nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD([*gate.parameters(), *plain.parameters()], lr=0.01)
for _ in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    x = checkpoint(gate, x, use_reentrant=False)  # harmless: the line that reads is in the module
    x = checkpoint(plain, x, use_reentrant=False)  # harmless: computed again on the device
    optimizer.zero_grad()
    x.square().mean().backward()
    optimizer.step()
