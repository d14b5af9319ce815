"""A focal loss with weights gathered by class."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
alpha = torch.tensor([0.25, 0.5, 0.25]).to(device)
net = nn.Linear(16, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(STEPS):  # step
    x, y = torch.randn(64, 16, device=device), torch.randint(3, (64,), device=device)
    log_p = F.log_softmax(net(x), dim=1)
    nll = F.nll_loss(log_p, y, reduction="none")
    p = log_p.exp().gather(1, y[:, None]).squeeze(1)  # harmless: indices of the device
    easy = (p > 0.9).type_as(p)  # harmless: compared on the device
    loss = (alpha[y] * (1 - p) ** 2 * nll * (1 - 0.5 * easy)).mean()  # harmless: indices of the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
