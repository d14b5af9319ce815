"""Iterating over a tensor makes views; using one as a number reads it."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Embedding(50, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
names = [f"word{i}" for i in range(50)]
seen = []
for _ in range(STEPS):  # step
    ids = torch.randint(50, (5,), device=device)
    loss = model(ids).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for i in ids:  # harmless: views, no values
        seen.append(names[i])  # waits: index, 5 a step, static maybe
print(len(seen))
