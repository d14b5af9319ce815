"""What stands in comments, strings and docstrings is not run: loss.item(), torch.cuda.synchronize()."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
HELP = """
    loss.item()
    torch.cuda.synchronize()
"""
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    # print(loss.item())
    loss = model(torch.randn(16, 8, device=device)).square().mean()
    message = f"step {step}: call loss.item() to read, or x.cpu()"  # harmless: a string
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # loss.tolist() would wait here
