"""An image classifier as a workload, which can be run under any plan, compared and timed.

    gapless verify --workload examples/workload_classifier.py:make_workload
    gapless compare --workload examples/workload_classifier.py:make_workload

A workload is what a training loop goes round: model, optimizer, batches and step, built anew by
one function each time that it is called. Random numbers come from torch's seed, which is set
before every call; the order of the batches has a generator of its own, so that it depends on
nothing that the step draws.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import gapless


NUM_CLASSES = 4


def make_images(count: int = 512) -> TensorDataset:
    """Return noisy images, 1 x 16 x 16, with a bright square in one of four corners."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(NUM_CLASSES, (count,), generator=random)
    images = torch.randn(count, 1, 16, 16, generator=random)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[0, row : row + 8, column : column + 8] += 0.5
    return TensorDataset(images, labels)


def make_workload(device: torch.device) -> gapless.Workload:
    """Build everything that a run changes."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, kernel_size=3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(16 * 8 * 8, NUM_CLASSES),
    ).to(device)
    # Fused: it counts its steps on the GPU, so that a captured step holds the update as well.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    order = torch.Generator().manual_seed(1)
    batches = DataLoader(make_images(), batch_size=32, shuffle=True, generator=order)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> gapless.StepLoss:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Still on the device: the loop reads it when its plan says.
        return gapless.StepLoss(loss=loss, weight=len(images))

    return gapless.Workload(
        model=model, optimizer=optimizer, batches=batches, step=step, unit="images"
    )
