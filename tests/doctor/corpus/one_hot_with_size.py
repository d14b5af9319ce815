"""One-hot targets with the number of classes."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 4
net = nn.Linear(10, CLASSES).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    x = torch.randn(64, 10, device=device)
    y = torch.randint(CLASSES, (64,), device=device)
    target = F.one_hot(y, CLASSES).float()  # harmless: the size is given
    again = F.one_hot(y, num_classes=CLASSES)  # harmless: the size is given
    p = net(x).softmax(1)
    loss = 1 - 2 * (p * target).sum() / (p + target).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
