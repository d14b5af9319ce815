"""A loop that accumulates, clips, logs and evaluates, all in its own order."""

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
inputs = torch.randn(800, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)
loader = DataLoader(torch.utils.data.Subset(data, range(640)), batch_size=32, shuffle=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(640, 800)), batch_size=32)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
gapless.capture(model, optimizer, device=device)
accumulate = 2

for epoch in range(args.steps // len(loader)):
    model.train()
    for number, (x, y) in enumerate(loader, 1):
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        (loss / accumulate).backward()
        if number % accumulate == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
        if number % 10 == 0:
            print(f"batch {number}: loss {loss.item():.12f}, norm {norm.item():.12f}")
    model.eval()
    num_right = 0
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            num_right += (model(x).argmax(dim=1) == y).sum().item()
    print(f"epoch {epoch}: {num_right} of 160 right")
print(gapless.capture_report(model))
print(gapless.capture_report(optimizer))
