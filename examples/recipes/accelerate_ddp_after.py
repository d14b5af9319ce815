"""Several GPUs by Accelerate: torchrun --nproc-per-node 2 SCRIPT."""

import argparse

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
accelerator = Accelerator(cpu=args.device != "cuda")

torch.manual_seed(0)
inputs = torch.randn(640 * accelerator.num_processes, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
side = torch.cuda.Stream() if args.device == "cuda" else None
with torch.cuda.stream(side):
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, loader, device_placement=[True, True, False]
    )
if side is not None:
    torch.cuda.current_stream().wait_stream(side)
torch.manual_seed(accelerator.process_index)  # each drops out other units


@gapless.capture(device=accelerator.device, num_warmup=11)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), max_norm=0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(accelerator.device, ranks=True)
    for x, y in gapless.prefetch(loader, accelerator.device):
        losses.add(train_step(x, y))
    accelerator.print(f"epoch {epoch}: loss {losses.mean():.12f}")
accelerator.print(train_step.report)
train_step.clear()
accelerator.end_training()
