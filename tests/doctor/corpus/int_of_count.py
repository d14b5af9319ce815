"""The number of tokens of a batch as a Python number."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAD = 0
table = nn.Embedding(200, 32, padding_idx=PAD).to(device)
out = nn.Linear(32, 200).to(device)
optimizer = torch.optim.Adam([*table.parameters(), *out.parameters()], lr=1e-3)
tokens_seen = 0
for _ in range(STEPS):  # step
    tokens = torch.randint(200, (8, 30), device=device)
    mask = tokens != PAD
    tokens_seen += int(mask.sum())  # waits: int, static surely
    rows = int(tokens.shape[0])  # harmless: a shape is known on the host
    logits = out(table(tokens))
    losses = nn.functional.cross_entropy(logits.view(-1, 200), tokens.view(-1), reduction="none")
    loss = (losses * mask.view(-1)).sum() / mask.sum()  # harmless: divided on the device
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(tokens_seen)
