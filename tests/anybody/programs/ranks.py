"""Reads what a launcher sets, and writes one file for each rank."""

import os

import torch

rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(rank)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    (model(torch.randn(3, 4)) ** 2).sum().backward()
    optimizer.step()
print(f"rank {rank} of {world_size}, local {os.environ.get('LOCAL_RANK')}")
torch.save(model.state_dict(), f"rank{rank}.pt")
