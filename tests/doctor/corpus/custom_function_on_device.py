"""A custom function whose backward pass stays on the device, and a hook that does."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() < 1, grad, 0.0)  # harmless: keeps the shape


net = nn.Linear(8, 8).to(device)
net.weight.register_hook(lambda grad: grad * 0.5)  # harmless: stays on the device
norms = torch.zeros(2, device=device)


@net.bias.register_post_accumulate_grad_hook
def keep_norm(parameter):
    norms[0] = parameter.grad.norm()  # harmless: written on the device


optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    loss = Straight.apply(net(torch.randn(16, 8, device=device))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
