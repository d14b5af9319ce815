"""Several GPUs by Lightning Fabric: torchrun --nproc-per-node 2 SCRIPT."""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


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
loader = fabric.setup_dataloaders(loader)
torch.manual_seed(fabric.global_rank)  # each drops out other units

for epoch in range(args.steps // len(loader)):
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    mean = fabric.all_reduce(torch.tensor(total / len(loader), dtype=torch.float64))
    fabric.print(f"epoch {epoch}: loss {mean.item():.12f}")
