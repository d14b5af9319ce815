"""All rows are on the device already, but the dataset reads the class of each."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(STEPS * 4, 16, device=device)
        self.y = torch.randint(3, (STEPS * 4,), device=device)

    def __len__(self):
        return len(self.x)  # harmless: a size

    def __getitem__(self, index):
        x = self.x[index]  # harmless: a view
        return x, int(self.y[index])  # waits: int, 4 a step, static no


model = nn.Linear(16, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Rows(), batch_size=4):  # step; costs: loader, 0-1 a step, unseen, static no
    y = y.to(device)  # waits: copy, static maybe
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
