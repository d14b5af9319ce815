"""Mixed precision with a GradScaler, and clipped gradients."""

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
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
scaler = torch.amp.GradScaler(device.type)


@gapless.capture(device=device)
def train_step(x, y):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(loader, device):
        losses.add(train_step(x, y))
    print(f"epoch {epoch}: loss {losses.mean():.12f}")
print(f"scale {scaler.get_scale():g}")
print(train_step.report)
