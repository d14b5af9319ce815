"""Ends by an exit code of its own, early, as scripts with a budget do."""

import atexit
import sys

import torch

atexit.register(print, "bye")
torch.manual_seed(2)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(4, 6)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 50:
        print("out of budget at", step, loss.item())
        sys.exit(int(sys.argv[1]))
