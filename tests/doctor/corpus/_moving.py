"""Move nested batches."""

import torch


def to_device(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)  # waits: copy, 2 a step, static maybe
    if isinstance(value, dict):
        return {key: to_device(one, device) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(one, device) for one in value)
    return value
