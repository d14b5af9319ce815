"""Weights are copied and restored all the time, but they never leave the device."""

import copy
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
slow = copy.deepcopy(model)
for step in range(STEPS):  # step
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        kept = copy.deepcopy(model.state_dict())  # harmless: copies on the device
        momentum = copy.deepcopy(optimizer.state_dict())  # harmless: copies on the device
    if step % 3 == 2:
        slow.load_state_dict(kept)  # harmless: copies on the device
        model.weight.data.copy_(slow.weight.data)  # harmless: copies on the device
