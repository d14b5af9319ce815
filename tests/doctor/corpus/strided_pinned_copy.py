"""A page-locked tensor that is not dense is staged by the host."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
frames = torch.randn(2048, 1024)
if device == "cuda":
    frames = frames.pin_memory()
model = nn.Linear(512, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    left = frames[:, ::2].to(device, non_blocking=True)  # waits: strided copy, unseen, static no
    dense = frames[:512].to(device, non_blocking=True)  # harmless: dense and page-locked
    loss = model(left).square().mean() + dense.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
