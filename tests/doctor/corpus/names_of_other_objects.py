"""Methods called item, cpu, synchronize and tolist, of objects that are no tensors."""

import array
import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Shop:
    def item(self):
        return 3

    def cpu(self):
        return self

    def synchronize(self):
        return "done"

    def nonzero(self):
        return True


shop = Shop()
prices = array.array("d", [1.0, 2.0])
model = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):  # step
    count = shop.item()  # harmless: of another object
    place = shop.cpu().synchronize()  # harmless: of another object
    listed = prices.tolist()  # harmless: of an array
    flag = shop.nonzero()  # harmless: of another object
    item = dict(a=1).items()  # harmless: of a dict
    loss = model(torch.randn(4, 8, device=device)).square().mean() * count
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
