"""A loop with Accelerate that accumulates, clips, logs and gathers what it evaluates."""

import argparse

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless
from gapless.integrations.accelerate import capture_prepared


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(800, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)
loader = DataLoader(torch.utils.data.Subset(data, range(640)), batch_size=32, shuffle=True)
test_loader = DataLoader(torch.utils.data.Subset(data, range(640, 800)), batch_size=32)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
accelerator = Accelerator(cpu=args.device != "cuda", gradient_accumulation_steps=2)
model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
capture_prepared(accelerator)

for epoch in range(args.steps // len(loader)):
    model.train()
    for number, (x, y) in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
        if number % 10 == 0:
            print(f"batch {number}: loss {loss.item():.12f}, norm {norm.item():.12f}")
    model.eval()
    num_right = 0
    for x, y in test_loader:
        with torch.no_grad():
            answers = model(x).argmax(dim=1)
        answers, y = accelerator.gather_for_metrics((answers, y))
        num_right += (answers == y).sum().item()
    print(f"epoch {epoch}: {num_right} of 160 right")
print(gapless.capture_report(model))
print(gapless.capture_report(optimizer))
