"""The block of residual networks."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(num_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x):
        """Return features, [B, num_out, H / stride, W / stride]."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))
