"""A progress bar of a helper module formats what it is given."""

import os

import torch
from torch import nn
from _bar import Bar

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
bar = Bar(range(STEPS))
for step in bar:  # step
    loss = model(torch.randn(16, 4, device=device)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bar.set_postfix(loss=loss.detach(), lr=0.1)
