"""A constant made on the device in each step, and one that is only filled."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(3, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    image = torch.rand(64, 3, device=device)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device)  # waits: new tensor, static surely
    scale = image.new_tensor(0.225)  # waits: new tensor, static maybe
    zero = torch.zeros((), device=device)  # harmless: filled on the device
    half = torch.full((3,), 0.5, device=device)  # harmless: filled on the device
    loss = ((net((image - mean) / scale) - half).square().mean() + zero)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
