"""Batches are copied by a thread of a pool, with memory that is not page-locked."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


def load(index):
    batch = torch.randn(256, 64)
    return batch.to(device)  # waits: copy, in other, static maybe


model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with ThreadPoolExecutor(1) as pool:
    coming = pool.submit(load, 0)
    for step in range(STEPS):  # step
        x = coming.result()  # harmless: waits for a thread, not for the device
        coming = pool.submit(load, step + 1)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
