"""In the style of torchvision's references: a MetricLogger whose meters read what they are given."""

import os
import time
from collections import defaultdict, deque

import torch

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SmoothedValue:
    def __init__(self):
        self.deque = deque(maxlen=20)

    def update(self, value):
        self.deque.append(value)

    @property
    def median(self):
        return torch.tensor(list(self.deque)).median().item()  # harmless: numbers of the host


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                value = value.item()  # waits: item, 2 a step
            self.meters[name].update(value)

    def log_every(self, iterable, print_freq, header):
        start = time.time()
        for i, value in enumerate(iterable):
            yield value
            if i % print_freq == 0:
                print(header, i, {name: meter.median for name, meter in self.meters.items()}, time.time() - start)


def train_one_epoch(model, criterion, optimizer, batches):
    model.train()
    metric_logger = MetricLogger()
    for image, target in metric_logger.log_every(batches, 10, "Epoch: [0]"):  # step
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (output.argmax(1) == target).float().mean()
        metric_logger.update(loss=loss.detach(), acc1=accuracy, lr=optimizer.param_groups[0]["lr"])


model = torch.nn.Linear(32, 10).to(device)
batches = ((torch.randn(32, 32, device=device), torch.randint(10, (32,), device=device)) for _ in range(STEPS))
train_one_epoch(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batches)
