"""Several GPUs by Lightning Fabric: torchrun --nproc-per-node 2 SCRIPT."""

import argparse
import atexit
import os

import torch
from lightning.fabric import Fabric
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
fabric = Fabric(
    accelerator="gpu" if args.device == "cuda" else "cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
)
fabric.launch()

torch.manual_seed(0)
inputs = torch.randn(640 * fabric.world_size, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader, move_to_device=False)
torch.manual_seed(fabric.global_rank)  # each drops out other units


@gapless.capture(device=fabric.device, num_warmup=11)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=0.5, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad()
    return loss


atexit.register(train_step.clear)  # before Fabric destroys the process group

for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(fabric.device, ranks=True)
    for x, y in gapless.prefetch(loader, fabric.device):
        losses.add(train_step(x, y))
    fabric.print(f"epoch {epoch}: loss {losses.mean():.12f}")
fabric.print(train_step.report)
