"""The function that makes batches makes them on the device; the loader calls it in this process."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"
rows = [[float(i % 7), float(i % 3)] for i in range(STEPS * 8)]


def collate(chosen):
    return torch.tensor(chosen, device=device)  # waits: new tensor, static maybe


model = nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(rows, batch_size=8, collate_fn=collate):  # step; costs: loader, 0-1 a step, unseen, static no
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
