"""A validation pass after each step, accuracy read once a pass."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.Adam(model.parameters())
valid = [(torch.randn(32, 16, device=device), torch.randint(4, (32,), device=device)) for _ in range(3)]


@torch.no_grad()
def validate():
    model.eval()
    correct = torch.zeros((), device=device)
    for x, y in valid:
        correct += (model(x).argmax(1) == y).sum()  # harmless: added up on the device
    model.train()
    return correct.item() / 96  # waits: item, static surely


best = 0.0
for epoch in range(STEPS):  # step
    x, y = torch.randn(32, 16, device=device), torch.randint(4, (32,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score = validate()
    if score > best:  # harmless: numbers of the host
        best = score
print(best)
