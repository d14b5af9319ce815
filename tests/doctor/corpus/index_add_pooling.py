"""Pooling of nodes into graphs; the number of graphs comes with the batch."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.Adam(net.parameters())
graph_of = torch.arange(64, device=device) // 8
for _ in range(STEPS):  # step
    h = net(torch.randn(64, 8, device=device))
    num_graphs = 8
    pooled = torch.zeros(num_graphs, 8, device=device).index_add_(0, graph_of, h)  # harmless: the size is given
    best = torch.full((num_graphs, 8), -9.0, device=device).scatter_reduce(
        0, graph_of[:, None].expand(-1, 8), h, reduce="amax"
    )  # harmless: the size is given
    top = h.topk(3, dim=0).values  # harmless: three are wanted
    loss = pooled.square().mean() + best.mean() + top.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
