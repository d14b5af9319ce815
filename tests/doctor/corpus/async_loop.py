"""The loop is a coroutine: a task reads the loss, a thread of the executor reads a norm."""

import asyncio
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []


async def report(loss):
    await asyncio.sleep(0)
    history.append(loss.item())  # waits: item, static maybe


def norm():
    return model.weight.detach().norm().item()  # waits: item, in other, static maybe


async def train():
    loop = asyncio.get_running_loop()
    for _ in range(STEPS):  # step
        loss = model(torch.randn(32, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        task = asyncio.create_task(report(loss.detach()))  # harmless: the task reads, later
        await loop.run_in_executor(None, norm)  # harmless: waits for a thread
        await task  # harmless: waits for a task


asyncio.run(train())
