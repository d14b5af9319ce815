"""Metrics are lambdas over several lines, called from a comprehension over several lines."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
mean_error = lambda out, y: (  # harmless: stays on the device
    (out - y)
    .abs()
    .mean()
)
worst = lambda out, y: (
    (out - y)
    .abs()
    .max()
    .item()  # waits: item
)
metrics = {"mean": mean_error, "worst": worst}
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
reports = []
for _ in range(STEPS):  # step
    x, y = torch.randn(64, 16, device=device), torch.randn(64, 4, device=device)
    out = model(x)
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    reports.append({  # harmless: the reader is one of the lambdas
        name: metric(
            out.detach(),
            y,
        )
        for name, metric in metrics.items()
    })
