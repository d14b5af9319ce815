"""The compiled model looks at its own values: a break of the graph, and a wait, in every step."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Careful(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 1)

    def forward(self, x):
        h = self.first(x).relu()
        if h.detach().mean() > 100:  # waits: bool, static maybe, unsure
            h = h / 2
        return self.second(h)


model = Careful().to(device)
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):  # step
    loss = compiled(torch.randn(64, 16, device=device)).square().mean()  # harmless: the wait is in the module
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
