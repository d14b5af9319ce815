"""Forward and backward are a CUDA graph, replayed in each step; its loss is read."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 32, device=device)


def forward_backward():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    return loss


if cuda:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward_backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = forward_backward()
history = []
for _ in range(STEPS):  # step
    x.normal_()  # harmless: drawn on the device
    if cuda:
        graph.replay()  # harmless: queues the graph
    else:
        loss = forward_backward()
    optimizer.step()
    history.append(loss.item())  # waits: item, static maybe
