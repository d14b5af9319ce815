"""A hook on a tensor looks for NaN in its gradient."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def complain(grad):
    if torch.isnan(grad).any():  # waits: bool, in autograd, static surely
        raise RuntimeError("a gradient is not a number")
    return grad.clamp(-1, 1)  # harmless: clamped on the device


lstm = nn.LSTM(8, 16).to(device)
optimizer = torch.optim.Adam(lstm.parameters())
for _ in range(STEPS):  # step
    out, _ = lstm(torch.randn(12, 4, 8, device=device))
    out.register_hook(complain)
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
