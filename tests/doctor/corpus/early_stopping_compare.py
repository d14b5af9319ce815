"""The best loss so far is kept as a tensor; each comparison reads the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = None
        self.bad = 0

    def __call__(self, loss):
        if self.best is None or loss < self.best:  # waits: bool
            self.best = loss
            self.bad = 0
        else:
            self.bad += 1
        return self.bad > self.patience


model = nn.Linear(5, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stopping = EarlyStopping(patience=10_000)
for epoch in range(STEPS):  # step
    x = torch.randn(50, 5, device=device)
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if stopping(loss.detach()):
        break
