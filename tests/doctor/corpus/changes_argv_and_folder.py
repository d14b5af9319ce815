"""The script changes its arguments, its path and its working directory before it trains."""

import os
import sys
import tempfile

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
before = os.getcwd()
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    sys.argv[:] = ["somebody", "--else"]
    sys.path[:] = [folder, *sys.path[1:]]
    model = nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open("loss.txt", "w") as out:
        for _ in range(STEPS):  # step
            loss = model(torch.randn(32, 16, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item(), file=out)  # waits: item, static surely
    os.chdir(before)
