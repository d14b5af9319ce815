"""Memory given back to the driver in each step."""

import gc
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(512, 512).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):  # step
    out = model(torch.randn(20000, 512, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del out, loss
    gc.collect()  # costs: gc, unseen, static maybe
    torch.cuda.empty_cache()  # waits: empty_cache, 1-30 a step, unseen, static surely
