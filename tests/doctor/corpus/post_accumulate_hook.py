"""Statistics of gradients as they become ready, in a hook after accumulation."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
stats = {}


def watch(name):
    def hook(parameter):
        grad = parameter.grad
        stats[name] = (
            grad.mean().item(),  # waits: item, 8 a step, in autograd
            grad.std(unbiased=False).item(),
        )

    return hook


for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(watch(name))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    optimizer.zero_grad()
    model(torch.randn(16, 8, device=device)).square().mean().backward()
    optimizer.step()
