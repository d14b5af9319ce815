"""An evaluation on other data after each epoch."""

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


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

for epoch in range(args.steps // len(loader)):
    model.train()
    losses = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    hits = []
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            hits.append((model(x).argmax(1) == y).sum().item())
    loss, accuracy = sum(losses) / len(losses), sum(hits) / len(held_out)
    print(f"epoch {epoch}: loss {loss:.12f}, accuracy {accuracy:.4f}")
