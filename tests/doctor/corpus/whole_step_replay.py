"""The whole step is a CUDA graph: no optimizer is called in the loop, nothing but a replay."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.Adam(model.parameters(), capturable=cuda)
x = torch.randn(64, 32, device=device)


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


if cuda:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step()
history = []
for step in range(STEPS):  # step of no optimizer
    x.normal_()  # harmless: drawn on the device
    if cuda:
        graph.replay()  # harmless: queues the graph
    else:
        loss = train_step()
    if step % 2 == 0:
        history.append(float(loss))  # waits: float, 1/2 a step, static maybe
