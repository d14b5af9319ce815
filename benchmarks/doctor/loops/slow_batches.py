"""Batches are made in this process, and take the host longer than the device takes to train on one."""

import torch
from _clock import Run, host_work
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """Rows that take the host a while, as pictures do."""

    def __init__(self, rows, width):
        self.rows, self.width = rows, width

    def __len__(self):
        """Return the number of rows."""
        return self.rows

    def __getitem__(self, index):
        """Return a row and its class."""
        host_work(0.3)
        return torch.full((self.width,), index / self.rows), index % 10


run = Run(steps=100)
width, batch = run.size(2048, 16), run.size(16, 2)
torch.manual_seed(1)
model = nn.Sequential(*[nn.Linear(width, width) for _ in range(run.size(16, 2))]).to(run.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
loader = DataLoader(Slow(run.num_steps * batch, width), batch_size=batch)
for _, (x, y) in zip(run.steps(), loader, strict=True):
    x, y = x.to(run.device), y.to(run.device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
run.say()
