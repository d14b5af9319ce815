"""A tensor of one integer as an index is read; as an index of one element it is not."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
experts = torch.randn(8, 16, 16, device=device, requires_grad=True)
optimizer = torch.optim.SGD([experts], lr=0.01)
router = nn.Linear(16, 8).to(device)
for _ in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    best = router(x).mean(0).argmax()
    expert = experts[best]  # waits: index, unsure
    other = experts.index_select(0, best.view(1))[0]  # harmless: gathered on the device
    loss = (x @ expert).square().mean() + (x @ other).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
