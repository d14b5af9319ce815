"""Every warning is an error, as careful people have it: a tool must not make one."""

import os
import warnings

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
warnings.simplefilter("error")
picked, history = [], []
for _ in range(STEPS):  # step
    out = model(torch.randn(32, 16, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    picked.append(out.detach()[:, 0].masked_select(out[:, 1] > 0))  # waits: shape, unseen, static surely
    history.append(loss.item())  # waits: item, unseen, static surely
