"""An image classifier: a small residual network on images of the size of CIFAR's."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gapless
from benchmarks.models.residual import Block
from benchmarks.public_loops.script import Loop


NUM_CLASSES = 10

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


class Images(Dataset):
    """Noise with a bright stripe whose row tells the class; bytes, 3 x 32 x 32."""

    def __init__(self, count):
        draw = torch.Generator().manual_seed(0)
        self.labels = torch.randint(NUM_CLASSES, (count,), generator=draw).tolist()
        self.images = torch.randint(200, (count, 3, 32, 32), generator=draw, dtype=torch.uint8)
        for image, label in zip(self.images, self.labels, strict=True):
            image[:, 3 * label : 3 * label + 3] += 50

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return self.images[number], self.labels[number]


def normalized(samples):
    """Return a batch of images, normalised channel by channel, and their labels."""
    images = torch.stack([image for image, _ in samples]).float().div_(255.0)
    return (images - MEAN) / STD, torch.tensor([label for _, label in samples])


def make_model(run):
    """Return the network."""
    width, depth = (8, 1) if run.is_tiny else (64, 2)
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    num_in = width
    for stage in range(3):
        num_out = width << stage
        for number in range(depth):
            layers.append(Block(num_in, num_out, stride=2 if stage and not number else 1))
            num_in = num_out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, NUM_CLASSES)]
    return nn.Sequential(*layers)


def make_loader(run):
    """Return the loader of an epoch of `run.steps` batches."""
    size = 8 if run.is_tiny else 128
    loader = DataLoader(
        Images(run.steps * size),
        batch_size=size,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        pin_memory=run.device.type == "cuda",
        collate_fn=normalized,
    )
    run.loaders.append(loader)
    return loader


def as_written(run):
    """Read loss and hits of every step, for the progress bar."""
    device = run.device
    model = make_model(run).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    train_loader = make_loader(run)
    while True:
        model.train()
        losses, hits = [], []
        for step, (inputs, targets) in enumerate(train_loader):
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            hits.append(outputs.argmax(1).eq(targets).sum().item())
            run.progress(f"{step} | loss {losses[-1]:.3f} | hits {hits[-1]:.0f}")
        scheduler.step()
        run.progress(f"epoch: loss {sum(losses) / len(losses):.3f}, hits {sum(hits):.0f}\n")
        yield model, {"loss": losses, "hits": hits}


def with_gapless(run):
    """Show the newest loss and hits that have arrived."""
    device = run.device
    model = make_model(run).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    train_loader = gapless.prefetch(make_loader(run), device)
    metrics = gapless.DeferredLoss(device)
    while True:
        model.train()
        for step, (inputs, targets) in enumerate(train_loader):
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            metrics.add(loss=loss, hits=outputs.argmax(1).eq(targets).sum())
            if newest := metrics.latest():
                run.progress(
                    "{} | loss {loss:.3f} | hits {hits:.0f}".format(step, **newest.values)
                )
        scheduler.step()
        run.progress("epoch: loss {loss:.3f}, hits {hits:.1f} a step\n".format(**metrics.mean()))
        yield model, metrics.history
        metrics.reset()


LOOP = Loop(
    name="image",
    title="image classifier (residual network, 2 workers, loss and hits read each step)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=60,
)
