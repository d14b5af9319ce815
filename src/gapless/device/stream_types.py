"""The types of torch's streams and events."""

from __future__ import annotations

import torch


# Weak references to those of CUDA lead to freed memory once they are gone (torch 2.10 to 2.12).
STREAM_TYPES: tuple[type, ...] = (
    torch.Stream,
    torch.cuda.Stream,
    torch.Event,
    torch.cuda.Event,
)
