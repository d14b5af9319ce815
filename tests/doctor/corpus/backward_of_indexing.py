"""Only the indexing of a graph by a mask made once; the mask is expanded again going back."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
mask = torch.arange(64, device=device) % 3 == 0
places = mask.nonzero().squeeze(1)
encoder = nn.Linear(8, 8).to(device)
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(STEPS):  # step
    nodes = encoder(torch.randn(64, 8, device=device))
    chosen = nodes[mask]  # waits: shape; waits: shape, 0-2 a step, in autograd, static no, unsure
    again = nodes[places]  # harmless: indices of the device, their number is known
    loss = chosen.square().mean() + again.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
