"""Detection: gather the positions of foreground anchors."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
head = nn.Linear(32, 5).to(device)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
for _ in range(STEPS):  # step
    features = torch.randn(500, 32, device=device)
    labels = torch.randint(0, 2, (500,), device=device)
    out = head(features)
    positive = torch.nonzero(labels == 1).squeeze(1)  # waits: shape, static surely
    boxes = out[positive, 1:]  # harmless: indices are on the device, their number is known
    loss = boxes.abs().mean() + out[:, 0].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
