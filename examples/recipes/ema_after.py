"""A moving average of the weights, which is evaluated in the end."""

import argparse
import copy

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
average = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def update_average(decay=0.99):
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight, 1 - decay)


@gapless.capture(device=device)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average()
    return loss


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(loader, device):
        losses.add(train_step(x, y))
    print(f"epoch {epoch}: loss {losses.mean():.12f}")

with torch.no_grad():
    hits = average(inputs.to(device)).argmax(1) == labels.to(device)
print(f"accuracy of the average {hits.float().mean().item():.4f}")
print(train_step.report)
