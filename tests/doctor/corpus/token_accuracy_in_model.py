"""A model that returns its statistics as numbers from `forward`."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens, tags):
        logits = self.head(self.table(tokens))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        right = (logits.argmax(-1) == tags).float().mean()
        return {
            "loss": loss,
            "accuracy": right.item(),  # waits: item
            "tokens": tokens.numel(),
        }


tagger = Tagger().to(device)
optimizer = torch.optim.Adam(tagger.parameters())
for _ in range(STEPS):  # step
    tokens = torch.randint(100, (4, 10), device=device)
    tags = torch.randint(5, (4, 10), device=device)
    result = tagger(tokens, tags)
    optimizer.zero_grad()
    result["loss"].backward()
    optimizer.step()
