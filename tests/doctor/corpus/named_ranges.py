"""Ranges and marks for profilers, which wait for nobody."""

import os

import torch
from torch import nn
from torch.profiler import record_function

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    with record_function("forward"):  # harmless: a name in the trace
        loss = model(torch.randn(32, 64, device=device)).square().mean()
    with record_function(f"backward {step}"):  # harmless: a name in the trace
        optimizer.zero_grad()
        loss.backward()
    if cuda:
        torch.cuda.nvtx.range_push("step")  # harmless: a name in the trace
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()  # harmless: on the device
    optimizer.step()
    if cuda:
        end.record()  # harmless: on the device
        torch.cuda.nvtx.range_pop()
