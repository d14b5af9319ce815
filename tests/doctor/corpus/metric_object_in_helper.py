"""A metric as libraries write it: state, update, compute; it lives in another module."""

import os

import torch
from torch import nn
from _metrics import Accuracy, MeanLoss

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accuracy, mean_loss = Accuracy(), MeanLoss()
for step in range(STEPS):  # step
    x = torch.randn(64, 16, device=device)
    y = torch.randint(4, (64,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean_loss.update(loss)  # harmless: the line that waits is in the helper
    accuracy.update(logits, y)
print(accuracy.compute(), mean_loss.compute())
