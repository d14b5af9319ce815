"""Gradients that are differentiated are summed in the order of the loop as written, also where that changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


pytestmark = pytest.mark.gpu

# A physics-informed network: autograd's thread records more in a step than the loop, and overtakes it.
SCRIPT = """
import hashlib
import sys

import torch

import gapless

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(40, 40), torch.nn.Tanh())]
net = torch.nn.Sequential(torch.nn.Linear(2, 40), torch.nn.Tanh(), *layers, torch.nn.Linear(40, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
inside = torch.rand(500, 2).cuda().requires_grad_()
edge = torch.rand(50, 2).cuda()


def derivative(u):
    return torch.autograd.grad(u, inside, torch.ones_like(u), create_graph=True)[0]


def step():
    optimizer.zero_grad()
    u = net(inside)
    first = derivative(u)
    second = derivative(first[:, :1])[:, :1]
    residual = first[:, 1:] + u * first[:, :1] - 0.003 * second
    loss = residual.square().mean() + net(edge).square().mean()
    loss.backward()
    optimizer.step()
    return loss


# What was recorded before gives the loop's thread a lead.
for _ in range(300):
    inside * 1
train = gapless.capture(step) if sys.argv[1] == "captured" else step
for _ in range(150):
    train()
print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in net.parameters())).hexdigest())
print(train.report.num_replays > 50 if sys.argv[1] == "captured" else True)
"""


def test_a_network_that_differentiates_twice_trains_as_written():
    """In processes of their own, as the order depends on all that was recorded before."""
    env = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

    def printed(how):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, how],
            capture_output=True,
            text=True,
            check=True,
            env=env,
        ).stdout

    as_written = printed("as written")

    assert printed("as written") == as_written
    assert printed("captured") == as_written
