"""Values are read by functions that were put together from others."""

import os
from functools import partial
from operator import methodcaller

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
names = ("policy", "value", "entropy")
read = methodcaller("item")
rounded = partial(round, ndigits=3)
model = nn.Linear(16, 3).to(device)
optimizer = torch.optim.Adam(model.parameters())
rows, totals = [], []
for _ in range(STEPS):  # step
    parts = model(torch.randn(64, 16, device=device)).square().mean(0).unbind()
    total = sum(parts)  # harmless: a sum of tensors is a tensor
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    rows.append(dict(zip(names, map(read, parts))))  # waits: item, 3 a step, static no
    totals.append(rounded(float(total.detach())))  # waits: float, static maybe
    lazily = map(float, parts)  # harmless: nothing is read before somebody asks
