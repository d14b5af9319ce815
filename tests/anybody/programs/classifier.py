"""Train a small classifier, print each epoch's loss, and keep checkpoints."""

import argparse
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def train(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if i % 8 == 0:
            print(f"  batch {i}/{len(loader)} loss {loss.item():.6f}", end="\r" if i else "\n")
    return total / len(loader)


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main():
    args = get_args()
    start = time.time()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(192, 12)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    loader = DataLoader(data, 8, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    os.makedirs(args.out, exist_ok=True)
    for epoch in range(args.epochs):
        loss = train(model, loader, optimizer, device)
        print(f"\nepoch {epoch}: loss {loss:.6f} accuracy {accuracy(model, loader, device):.4f}")
        scheduler.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            os.path.join(args.out, f"epoch{epoch}.pt"),
        )
    if args.verbose:
        print(f"took {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
