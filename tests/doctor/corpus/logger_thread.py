"""A thread of its own reads the losses."""

import os
import queue
import threading

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
todo = queue.Queue()
history = []


def write_down():
    while (loss := todo.get()) is not None:
        history.append(loss.item())  # waits: item, in other, static maybe


writer = threading.Thread(target=write_down)
writer.start()
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    loss = model(torch.randn(64, 32, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    todo.put(loss.detach())  # harmless: hands a tensor over
todo.put(None)
writer.join()
print(len(history))
