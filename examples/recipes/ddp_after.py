"""Several GPUs by DistributedDataParallel: torchrun --nproc-per-node 2 SCRIPT."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
device = torch.device(args.device)
if device.type == "cuda":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
inputs = torch.randn(640 * world, 32)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)
sampler = DistributedSampler(data, world, rank)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
)
side = torch.cuda.Stream() if device.type == "cuda" else None
with torch.cuda.stream(side):
    model = DistributedDataParallel(model.to(device))
if side is not None:
    torch.cuda.current_stream().wait_stream(side)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(rank)  # each drops out other units


@gapless.capture(device=device, num_warmup=11)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for epoch in range(args.steps // len(loader)):
    sampler.set_epoch(epoch)
    losses = gapless.DeferredLoss(device, ranks=True)
    for x, y in gapless.prefetch(loader, device):
        losses.add(train_step(x, y))
    mean = losses.mean()
    if rank == 0:
        print(f"epoch {epoch}: loss {mean:.12f}")
if rank == 0:
    print(train_step.report)
train_step.clear()
dist.destroy_process_group()
