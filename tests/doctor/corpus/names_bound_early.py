"""Functions are bound to names of the script before anybody could replace them."""

import os

import torch
from torch import nn
from torch.cuda import is_available, synchronize

read = torch.Tensor.item
STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if is_available() else "cpu"
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for _ in range(STEPS):  # step
    loss = model(torch.randn(16, 32, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if is_available():
        synchronize()  # waits: device, unseen, static surely
    history.append(read(loss))  # waits: item, static no
