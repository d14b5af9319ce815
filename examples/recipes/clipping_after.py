"""Gradients are clipped, and their norm is logged."""

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


@gapless.capture(device=device)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
    optimizer.step()
    return {"loss": loss, "norm": norm}


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(loader, device):
        losses.add(**train_step(x, y))
    means, history = losses.mean(), losses.history
    print(f"epoch {epoch}: loss {means['loss']:.12f}, norm {max(history['norm']):.6f} at most")
print(train_step.report)
