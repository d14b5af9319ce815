"""Results of a step in a dataclass of floats."""

import math
import os
from dataclasses import dataclass

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class StepResult:
    loss: float
    perplexity: float

    @classmethod
    def of(cls, loss):
        return cls(
            loss=float(loss),  # waits: float, 2 a step
            perplexity=math.exp(loss),
        )


embed = nn.Embedding(100, 32).to(device)
head = nn.Linear(32, 100).to(device)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])
history = []
for _ in range(STEPS):  # step
    tokens = torch.randint(100, (16, 20), device=device)
    logits = head(embed(tokens[:, :-1]))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(StepResult.of(loss.detach()))
print(history[-1])
