"""Print the loss tensor itself, now and then."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(32, 1).to(device)
opt = torch.optim.AdamW(model.parameters())

for i in range(STEPS):  # step
    x = torch.rand(256, 32, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print("step", i, "loss", loss.detach())  # waits: print, 4/10-12 a step, static surely, unsure
