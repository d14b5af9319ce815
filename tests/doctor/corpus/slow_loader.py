"""A dataset that takes long, without workers: the step waits in `next`."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Slow(Dataset):
    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        picture = torch.rand(3, 64, 64)
        for _ in range(40):
            picture = (picture.flip(-1) + picture.roll(1, 1)) / 2
        return picture.mean((1, 2)), index % 2


model = nn.Linear(3, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=4, pin_memory=device == "cuda"):  # step; costs: loader, unseen, static maybe
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  # harmless: page-locked
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
