"""A physics-informed network as people write it: Burgers' equation, derivatives by autograd, Adam."""

import torch

import gapless
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
device = clock.device
net = torch.nn.Sequential(
    torch.nn.Linear(2, 40), torch.nn.Tanh(),
    *[layer for _ in range(4) for layer in (torch.nn.Linear(40, 40), torch.nn.Tanh())],
    torch.nn.Linear(40, 1),
).to(device)  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
inside = torch.rand(2000, 2).to(device).requires_grad_()
edge, value = torch.rand(200, 2).to(device), torch.zeros(200, 1).to(device)


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


@gapless.capture(device=device)  # gapless
def train_step():
    optimizer.zero_grad()
    u = net(inside)
    first = derivative(u, inside)
    second = derivative(first[:, 0:1], inside)[:, 0:1]
    residual = first[:, 1:2] + u * first[:, 0:1] - 0.01 / torch.pi * second
    loss = residual.square().mean() + torch.nn.functional.mse_loss(net(edge), value)
    loss.backward()
    optimizer.step()
    return loss


clock.length = 10 if clock.tiny else 60
clock.start()
while True:
    loss = train_step()
    clock.count()
