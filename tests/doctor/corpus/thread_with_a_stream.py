"""A thread copies batches in a stream of its own and waits for it before it hands one over."""

import os
import queue
import threading

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
ready = queue.Queue(maxsize=1)


def fetch():
    side = torch.cuda.Stream() if cuda else None
    host = torch.randn(256, 64)
    host = host.pin_memory() if cuda else host
    for _ in range(STEPS):
        if cuda:
            with torch.cuda.stream(side):
                batch = host.to(device, non_blocking=True)  # harmless: page-locked
            side.synchronize()  # waits: stream, in other, static maybe
        else:
            batch = host
        ready.put(batch)


fetcher = threading.Thread(target=fetch, name="fetcher")
fetcher.start()
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    x = ready.get()  # harmless: waits for a thread
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
fetcher.join()
