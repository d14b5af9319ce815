"""A physics-informed network: Burgers' equation, whose residual has second derivatives."""

import math

import torch
from torch import nn


TITLE = "PINN: second derivatives by create_graph, Adam, losses printed each step"
STEPS = 100

VISCOSITY = 0.01 / math.pi


class FCN(nn.Module):
    """Linear layers with tanh between them."""

    def __init__(self, width, depth):
        super().__init__()
        sizes = [2, *[width] * depth, 1]
        self.linears = nn.ModuleList(
            nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)
        )
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x):
        """Return the solution, [N, 1], at places and times, [N, 2]."""
        for linear in self.linears[:-1]:
            x = torch.tanh(linear(x))
        return self.linears[-1](x)


def gradient(u, x):
    """Return the derivatives of u, with a graph of their own."""
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


def residual(model, x):
    """Return how far the network is from the equation, [N, 1]."""
    u = model(x)
    u_x_t = gradient(u, x)
    u_xx = gradient(u_x_t[:, :1], x)[:, :1]
    return u_x_t[:, 1:] + u * u_x_t[:, :1] - VISCOSITY * u_xx


def make_points(num_boundary, num_inside):
    """Return points on the boundary, the solution there, and points inside."""
    draw = torch.Generator().manual_seed(0)
    start = torch.rand(num_boundary, 2, generator=draw) * torch.tensor([2.0, 0.0]) - 1.0
    start[:, 1] = 0.0
    sides = torch.rand(num_boundary, 2, generator=draw)
    sides[:, 0] = sides[:, 0].round() * 2.0 - 1.0
    inside = torch.rand(num_inside, 2, generator=draw) * torch.tensor([2.0, 1.0])
    known = torch.cat([-torch.sin(math.pi * start[:, :1]), torch.zeros(num_boundary, 1)])
    return torch.cat([start, sides]), known, inside - torch.tensor([1.0, 0.0])


def train(args):
    """Train; return the network."""
    device = args.device
    width, depth, counts = (8, 2, (8, 16)) if args.is_small else (20, 8, (100, 10_000))
    x_u, u_known, x_f = (points.to(device) for points in make_points(*counts))
    x_f.requires_grad_(True)
    model = FCN(width, depth).to(device)
    mse = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in args.iterations:
        optimizer.zero_grad()
        loss_u = mse(model(x_u), u_known)
        loss_f = residual(model, x_f).square().mean()
        loss = loss_u + loss_f
        loss.backward()
        optimizer.step()
        args.log(loss=loss.item(), boundary=loss_u.item(), equation=loss_f.item())
    return model
