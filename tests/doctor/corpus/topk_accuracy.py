"""Top-1 and top-5 accuracy as the ImageNet example computes it, with an average meter."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True) / len(target) for k in topk]


model = nn.Linear(32, 100).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses, top1, top5 = AverageMeter(), AverageMeter(), AverageMeter()
for i in range(STEPS):  # step
    images = torch.randn(64, 32, device=device)
    target = torch.randint(100, (64,), device=device)
    output = model(images)
    loss = nn.functional.cross_entropy(output, target)
    acc1, acc5 = accuracy(output, target, topk=(1, 5))
    losses.update(loss.item(), images.size(0))  # waits: item, static surely
    top1.update(acc1[0], images.size(0))  # harmless: the meter adds tensors up
    top5.update(acc5.item(), images.size(0))  # waits: item
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(top1.sum / top1.count, top5.sum / top5.count)
