"""Lengths come from a mask on the device, and must come back to the host."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
gru = nn.GRU(16, 16, batch_first=True).to(device)
optimizer = torch.optim.Adam(gru.parameters())
for _ in range(STEPS):  # step
    x = torch.randn(6, 10, 16, device=device)
    mask = torch.arange(10, device=device)[None] < torch.randint(2, 11, (6, 1), device=device)
    lengths = mask.sum(1).sort(descending=True).values
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True)  # waits: cpu, static surely
    _, hidden = gru(packed)
    loss = hidden.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
