"""`non_blocking=True` on memory that is not page-locked."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.randn(STEPS * 64, 4096), torch.randint(10, (STEPS * 64,)))
loader = DataLoader(data, batch_size=64)
model = nn.Linear(4096, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:  # step
    x = x.to(device, non_blocking=True)  # waits: pageable copy, unseen, static maybe
    y = y.to(device, non_blocking=True)  # waits: pageable copy, 0-1 a step, unseen, unsure
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
