"""Steps and handlers are called by a driver in another module."""

import os

import torch
from torch import nn

from _engine import Engine

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.Adam(model.parameters())
history, seen = [], []


def train_step(engine, iteration):  # step
    x, y = torch.randn(32, 16, device=device), torch.randint(4, (32,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach(), "right": (logits.argmax(1) == y).sum()}  # harmless: tensors


trainer = Engine(train_step)


@trainer.on("iteration")
def count(engine):
    seen.append(engine.output["right"])  # harmless: keeps a tensor


@trainer.on("iteration", 2)
def log(engine, every):
    if engine.iteration % every == 0:
        history.append(float(engine.output["loss"]))  # waits: float, 1/2 a step, static maybe


@trainer.on("end")
def last(engine):
    print(int(engine.output["right"]))  # harmless: once, after the last step


trainer.run(STEPS)
