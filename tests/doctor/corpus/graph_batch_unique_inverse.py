"""Graphs: nodes are made unique, their number decides a size."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
table = nn.Embedding(500, 16).to(device)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    edges = torch.randint(500, (2, 128), device=device)
    nodes, inverse = edges.unique(return_inverse=True)  # waits: shape, 1-3 a step, static surely
    h = table(nodes)
    source, target = inverse  # harmless: two views
    summed = torch.zeros_like(h).index_add_(0, target, h[source])  # harmless: sizes are known
    degree = torch.zeros(nodes.numel(), device=device)  # harmless: a shape
    num_graphs = int(edges.max()) + 1  # waits: int, static surely
    loss = summed.square().mean() + degree.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
