"""A tied weight is one and the same tensor."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
embed = nn.Embedding(100, 16).to(device)
head = nn.Linear(16, 100, bias=False).to(device)
head.weight = embed.weight
optimizer = torch.optim.Adam(embed.parameters())
for _ in range(STEPS):  # step
    tokens = torch.randint(100, (4, 10), device=device)
    loss = nn.functional.cross_entropy(head(embed(tokens)).view(-1, 100), tokens.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tied = torch.equal(head.weight, embed.weight)  # harmless: one and the same tensor
    assert tied and head.weight is embed.weight  # harmless: identity
