"""A check that weights of two branches stay tied, in each step."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
a = nn.Linear(8, 8, bias=False).to(device)
b = nn.Linear(8, 8, bias=False).to(device)
b.load_state_dict(a.state_dict())
optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
for _ in range(STEPS):  # step
    x = torch.randn(16, 8, device=device)
    loss = a(x).square().mean() + b(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    same = torch.equal(a.weight, b.weight)  # waits: equal, static surely
    close = torch.allclose(a.weight, b.weight, atol=1e-3)  # waits: equal, static surely
    shapes = a.weight.shape == b.weight.shape  # harmless: shapes are compared on the host
