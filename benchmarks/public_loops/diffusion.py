"""A diffusion model: a small U-Net learns the noise that was added to images."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless
from benchmarks.models.denoiser import NUM_TIMES, Noise, UNet
from benchmarks.public_loops.script import Loop


def make_loader(run):
    """Return the loader of an epoch of `run.steps` batches of smooth images."""
    size, side = (2, 16) if run.is_tiny else (64, 32)
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(run.steps * size, 3, 4, 4, generator=draw) * 2.0 - 1.0
    images = F.interpolate(coarse, size=(side, side), mode="bilinear")
    return DataLoader(
        TensorDataset(images),
        batch_size=size,
        shuffle=True,
        pin_memory=run.device.type == "cuda",
    )


def as_written(run):
    """Show the loss of every step in the progress bar."""
    device = run.device
    model = UNet(8 if run.is_tiny else 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    diffusion = Noise(device)
    dataloader = make_loader(run)
    while True:
        losses = []
        for step, (images,) in enumerate(dataloader):
            images = images.to(device)
            t = torch.randint(NUM_TIMES, (images.shape[0],), device=device)
            x_t, noise = diffusion.added(images, t)
            loss = F.mse_loss(model(x_t, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            run.progress(f"{step}/{len(dataloader)} MSE={losses[-1]:.4f}")
        yield model, losses


def with_gapless(run):
    """Show the newest loss that has arrived."""
    device = run.device
    model = UNet(8 if run.is_tiny else 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    diffusion = Noise(device)
    dataloader = gapless.prefetch(make_loader(run), device)
    metrics = gapless.DeferredLoss(device)
    while True:
        for step, (images,) in enumerate(dataloader):
            t = torch.randint(NUM_TIMES, (images.shape[0],), device=device)
            x_t, noise = diffusion.added(images, t)
            loss = F.mse_loss(model(x_t, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics.add(loss)
            if newest := metrics.latest():
                run.progress(f"{step}/{len(dataloader)} MSE={newest.values['loss']:.4f}")
        metrics.mean()
        yield model, metrics.history
        metrics.reset()


LOOP = Loop(
    name="diffusion",
    title="diffusion (U-Net, random times, loss in the progress bar each step)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=50,
)
