"""Accelerate: the loop is the user's, the copies are the library's."""

import os

import torch
from _needs import needs

needs("accelerate")
from accelerate import Accelerator

STEPS = int(os.environ.get("CASE_STEPS", 60))
accelerator = Accelerator()
data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(4, (STEPS * 8,)))
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
total = 0.0
for x, y in loader:  # step; waits: copy, 0-3 a step, static no, unsure
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    total += loss.detach().float().item()  # waits: item
accelerator.print(total)
