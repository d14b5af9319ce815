"""Page-locked memory, but nobody says `non_blocking`."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(STEPS * 32, 256), torch.randn(STEPS * 32, 1))
loader = DataLoader(data, batch_size=32, pin_memory=torch.cuda.is_available(), num_workers=0)
model = nn.Linear(256, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
for batch in loader:  # step
    x, y = [t.to(device) for t in batch]  # waits: copy, 2 a step, static surely
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
