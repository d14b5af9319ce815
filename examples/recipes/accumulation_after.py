"""Gradients of four batches are added up before each update."""

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
device = torch.device(args.device)

torch.manual_seed(0)
inputs = torch.randn(640, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
accumulate = 4


@gapless.capture(device=device)
def train_step(x, y, is_last):
    loss = F.cross_entropy(model(x), y)
    (loss / accumulate).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return loss


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for number, (x, y) in enumerate(gapless.prefetch(loader, device), 1):
        losses.add(train_step(x, y, is_last=number % accumulate == 0))
    print(f"epoch {epoch}: loss {losses.mean():.12f}")
print(train_step.report)
