"""A small U-Net that finds the noise in images, and that noise."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


NUM_TIMES = 1000


class Block(nn.Module):
    """Two convolutions with the time between them, added to their input."""

    def __init__(self, num_in, num_out, time_width):
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, padding=1)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(8, num_out), nn.GroupNorm(8, num_out)
        self.time = nn.Linear(time_width, num_out)
        self.skip = nn.Conv2d(num_in, num_out, 1) if num_in != num_out else nn.Identity()

    def forward(self, x, time):
        """Return features, [B, num_out, H, W], of x and the embedded times, [B, time_width]."""
        h = F.silu(self.norm1(self.conv1(x))) + self.time(time)[:, :, None, None]
        return F.silu(self.norm2(self.conv2(h))) + self.skip(x)


class UNet(nn.Module):
    """Two steps down, two steps up, with connections across."""

    def __init__(self, width):
        super().__init__()
        self.width, wide = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, wide), nn.SiLU(), nn.Linear(wide, wide))
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Block(width, width, wide), Block(width, 2 * width, wide)
        self.shrink1 = nn.Conv2d(width, width, 4, stride=2, padding=1)
        self.shrink2 = nn.Conv2d(2 * width, 2 * width, 4, stride=2, padding=1)
        self.middle = Block(2 * width, 2 * width, wide)
        self.grow2 = nn.ConvTranspose2d(2 * width, 2 * width, 4, stride=2, padding=1)
        self.grow1 = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        self.up2, self.up1 = Block(4 * width, width, wide), Block(2 * width, width, wide)
        self.end = nn.Conv2d(width, 3, 1)

    def forward(self, x, t):
        """Return the noise in images x, [B, 3, H, W], at times t, [B]."""
        time = self.time(self._waves(t))
        first = self.down1(self.start(x), time)
        second = self.down2(self.shrink1(first), time)
        h = self.middle(self.shrink2(second), time)
        h = self.up2(torch.cat([self.grow2(h), second], dim=1), time)
        h = self.up1(torch.cat([self.grow1(h), first], dim=1), time)
        return self.end(h)

    def _waves(self, t):
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=t.device) * (-math.log(10000.0) / half))
        angles = t[:, None] * rates[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class Noise:
    """How much of an image is left at each time."""

    def __init__(self, device):
        left = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, NUM_TIMES), dim=0)
        self.image_share = left.sqrt().to(device)
        self.noise_share = (1.0 - left).sqrt().to(device)

    def added(self, images, t):
        """Return noisy images and the noise in them."""
        noise = torch.randn_like(images)
        image_share, noise_share = self.image_share[t], self.noise_share[t]
        return image_share[:, None, None, None] * images + noise_share[
            :, None, None, None
        ] * noise, noise
