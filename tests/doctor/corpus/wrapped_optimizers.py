"""Two optimizers behind one object that looks like an optimizer; one of them is a class of the script."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Careful(torch.optim.SGD):
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        if torch.stack([g.abs().max() for g in grads]).max() > 1e6:  # waits: bool, static maybe
            return None
        return super().step(closure)


class Both:
    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for one in self.optimizers:
            one.zero_grad()

    def step(self):
        for one in self.optimizers:
            one.step()


table = nn.Embedding(50, 16).to(device)
head = nn.Linear(16, 50).to(device)
optimizer = Both(Careful(table.parameters(), lr=0.1), torch.optim.AdamW(head.parameters()))
history = []
for _ in range(STEPS):  # step
    tokens = torch.randint(50, (64,), device=device)
    loss = nn.functional.cross_entropy(head(table(tokens)), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())  # waits: item, static maybe
