"""An evaluation on other data after each epoch."""

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
data, held_out = torch.utils.data.random_split(TensorDataset(inputs, labels), [480, 160])
loader = DataLoader(data, batch_size=24, shuffle=True)
test_loader = DataLoader(held_out, batch_size=48)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@gapless.capture(device=device)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@gapless.capture(device=device)
def test_step(x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).sum()


for epoch in range(args.steps // len(loader)):
    model.train()
    losses = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(loader, device):
        losses.add(train_step(x, y))
    model.eval()
    hits = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(test_loader, device):
        hits.add(test_step(x, y))
    hits.drain()
    loss, accuracy = losses.mean(), sum(hits.history) / len(held_out)
    print(f"epoch {epoch}: loss {loss:.12f}, accuracy {accuracy:.4f}")
print(train_step.report)
print(test_step.report)
