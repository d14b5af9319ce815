"""torch's own averaged model asks whether it is the first time."""

import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    averaged.update_parameters(model)  # waits: validation, 1-8 a step, static maybe, unsure
