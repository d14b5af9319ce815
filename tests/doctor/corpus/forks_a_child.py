"""Every tenth step a forked child writes down numbers of the host, and leaves."""

import json
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())  # waits: item, static surely
    if step % 10 == 9:
        child = os.fork()
        if child == 0:
            json.dumps(history)  # harmless: numbers of the host, in another process
            os._exit(0)
        os.waitpid(child, 0)  # harmless: waits for a process
