"""Skip a step whose loss is not a number."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
skipped = 0
for step in range(STEPS):  # step
    x = torch.randn(32, 16, device=device)
    loss = model(x).logsumexp(1).mean()
    optimizer.zero_grad()
    if torch.isnan(loss) or torch.isinf(loss):  # waits: bool, 2 a step, static surely
        skipped += 1
        continue
    loss.backward()
    optimizer.step()
print("skipped", skipped)
