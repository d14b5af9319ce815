"""A custom autograd function whose backward pass reads a value."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        largest = grad.abs().max().item()  # waits: item, in autograd, static surely
        if largest > ctx.limit:  # harmless: numbers of the host
            grad = grad * (ctx.limit / largest)
        return grad, None


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    hidden = ScaledGradient.apply(model[0](torch.randn(16, 8, device=device)), 1.0)
    loss = model[2](model[1](hidden)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
