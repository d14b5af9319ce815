"""A weighted sampler reads tensors of the host."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class ByLength(Sampler):
    def __init__(self, lengths, batch):
        self.lengths, self.batch = lengths, batch

    def __iter__(self):
        order = torch.argsort(self.lengths).tolist()  # harmless: on the host
        for start in range(0, len(order), self.batch):
            yield order[start : start + self.batch]

    def __len__(self):
        return int(torch.tensor(len(self.lengths) / self.batch).ceil())  # harmless: on the host


lengths = torch.randint(1, 50, (STEPS * 8,))
data = TensorDataset(torch.randn(STEPS * 8, 32), lengths)
loader = DataLoader(data, batch_sampler=ByLength(lengths, 8), pin_memory=device == "cuda")
model = nn.Linear(32, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for x, n in loader:  # step
    longest = n.max().item()  # harmless: of the batch on the host
    x = x.to(device, non_blocking=True)  # harmless: page-locked
    loss = model(x).square().mean() / longest
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
