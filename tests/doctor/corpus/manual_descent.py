"""No optimizer: weights are changed by hand, and the best loss is kept."""

import os

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
weights = [torch.randn(16, 16, device=device, requires_grad=True) for _ in range(3)]
best = float("inf")
for _ in range(STEPS):  # step of no optimizer
    x = torch.randn(32, 16, device=device)
    for w in weights:
        x = (x @ w).tanh()
    loss = x.square().mean()
    loss.backward()
    with torch.no_grad():
        for w in weights:
            w -= 0.1 * w.grad  # harmless: on the device
            w.grad = None
    if loss.detach() < best:  # waits: bool, static surely
        best = loss.detach()  # harmless: keeps a tensor
