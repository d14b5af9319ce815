"""The script mutes warnings around the very line that waits, and forgets all filters elsewhere."""

import os
import warnings

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
chosen = []
for _ in range(STEPS):  # step
    out = model(torch.randn(32, 16, device=device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = (out.detach() > 0.5).nonzero()  # waits: shape, unseen, static surely
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warnings.resetwarnings()
    warnings.filterwarnings("ignore", message=".*")
    chosen.append(places.unique())  # waits: shape, 1-3 a step, unseen, static surely
