"""Padding masks for attention, built on the device from lengths of the device."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
attention = nn.MultiheadAttention(16, 2, batch_first=True).to(device)
optimizer = torch.optim.AdamW(attention.parameters())
positions = torch.arange(12, device=device)
for _ in range(STEPS):  # step
    x = torch.randn(4, 12, 16, device=device)
    lengths = torch.randint(1, 13, (4,), device=device)
    padding = positions[None, :] >= lengths[:, None]  # harmless: compared on the device
    out, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
    keep = (~padding).unsqueeze(-1)
    loss = (out * keep).square().sum() / keep.sum()  # harmless: divided on the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
