"""The loader page-locks, the copies do not block."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.randn(STEPS * 64, 1024), torch.randint(10, (STEPS * 64,)))
loader = DataLoader(data, batch_size=64, pin_memory=device == "cuda")
model = nn.Linear(1024, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:  # step
    x = x.to(device, non_blocking=True)  # harmless: page-locked
    y = y.cuda(non_blocking=True) if device == "cuda" else y  # harmless: page-locked
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
