"""Forward and backward hooks of modules record activations."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
seen = {"forward": [], "backward": []}


def record_forward(module, inputs, output):
    seen["forward"].append(output.detach().abs().mean().tolist())  # waits: tolist


def record_backward(module, grad_in, grad_out):
    seen["backward"].append(float(grad_out[0].abs().mean()))  # waits: float, in autograd


net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
net[1].register_forward_hook(record_forward)
net[2].register_full_backward_hook(record_backward)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    optimizer.zero_grad()
    net(torch.randn(16, 8, device=device)).sum().backward()
    optimizer.step()
