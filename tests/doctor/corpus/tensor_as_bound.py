"""A length that lives on the device, used as a bound of a slice and of a range."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
rnn = nn.RNN(8, 8, batch_first=True).to(device)
optimizer = torch.optim.Adam(rnn.parameters())
for step in range(STEPS):  # step
    x = torch.randn(4, 12, 8, device=device)
    lengths = torch.full((4,), 9, device=device)
    longest = lengths.max()
    x = x[:, :longest]  # waits: index, static maybe
    out, _ = rnn(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    positions = torch.arange(longest, device=device)  # waits: index, static maybe
