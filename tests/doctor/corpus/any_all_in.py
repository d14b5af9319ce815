"""Python's own `any`, `all`, `in` and `not`, over tensors."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
banned = torch.tensor([100, 101], device=device)
names = ["weight", "bias"]
bad = 0
for _ in range(STEPS):  # step
    logits = model(torch.randn(32, 16, device=device))
    loss = logits.square().mean()
    optimizer.zero_grad()
    loss.backward()
    if any(p.grad.isnan().any() for p in model.parameters()):  # waits: bool, 2 a step
        bad += 1
    if not all(name in names for name, _ in model.named_parameters()):  # harmless: names
        bad += 1
    if logits.argmax() in banned:  # waits: bool
        bad += 1
    bad += not loss.isfinite()  # waits: bool
    optimizer.step()
