"""Masked language modelling: only the masked positions enter the loss."""

import os

import torch
from torch import nn
import torch.nn.functional as F

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
embed = nn.Embedding(300, 32).to(device)
head = nn.Linear(32, 300).to(device)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])
for _ in range(STEPS):  # step
    tokens = torch.randint(300, (8, 40), device=device)
    masked = torch.rand(8, 40, device=device) < 0.15
    inputs = tokens.masked_fill(masked, 1)  # harmless: the shape stays
    logits = head(embed(inputs))
    picked = logits[masked]  # waits: shape; waits: shape, 0-2 a step, in autograd, static no, unsure
    targets = tokens[masked]  # waits: shape
    loss = F.cross_entropy(picked, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
