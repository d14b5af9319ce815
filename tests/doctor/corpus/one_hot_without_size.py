"""One-hot targets for a dice loss; the number of classes is left out."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(10, 4).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
fixed = torch.arange(4, device=device)
for _ in range(STEPS):  # step
    x = torch.randn(64, 10, device=device)
    y = torch.cat([fixed, torch.randint(4, (60,), device=device)])
    target = F.one_hot(y).float()  # waits: shape, 1-2 a step, static surely
    p = net(x).softmax(1)
    loss = 1 - 2 * (p * target).sum() / (p + target).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
