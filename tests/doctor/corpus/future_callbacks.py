"""A future's callback reads the loss, in the thread that ends the future."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
history = []


def keep(loss, armed):
    armed.wait()
    return loss


def write_down(future):
    history.append(future.result().item())  # waits: item, in other, static maybe


model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ThreadPoolExecutor(1) as pool:
    for _ in range(STEPS):  # step
        loss = model(torch.randn(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        armed = threading.Event()
        future = pool.submit(keep, loss.detach(), armed)
        future.add_done_callback(write_down)  # harmless: called by the other thread
        armed.set()
        future.result()  # harmless: waits for a thread
print(len(history))
