"""Ordinary torch programs, to be run on the simulated device and on the CPU.

A program takes `put`, which brings a host tensor to the device, and returns the tensors that the
two runs must agree on.
"""

from __future__ import annotations

import torch

from gapless.testing.simulated.simulated_device import SimulatedDevice


PROGRAMS = {}
SCHEDULES = [("asap", 0), ("lazy", 0), ("random", 0)]


def program(check):
    PROGRAMS[check.__name__] = check
    return check


def put_on(device):
    """Return a function that copies host tensors into the device's memory."""

    def put(tensor):
        num_bytes = tensor.numel() * tensor.element_size()
        target = device.device_buffer(num_bytes).view(tensor.dtype).view(tensor.shape)
        return target.copy_(tensor)

    return put


def run_on_cpu(check):
    torch.manual_seed(11)
    results = [tensor.detach().clone() for tensor in check(torch.clone)]
    return results, torch.get_rng_state()


def run_on_device(check, scheduler, seed):
    """Return results, the generator's state and the device, which has been left."""
    torch.manual_seed(11)
    with SimulatedDevice(scheduler=scheduler, seed=seed) as device:
        results = [tensor.detach().cpu() for tensor in check(put_on(device))]
        state = torch.get_rng_state()
    return results, state, device


def bits(tensor):
    """Return what two equal tensors share: dtype, shape and bytes, so that NaN equals NaN."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.dtype, tensor.shape, bytes(dense.view(-1).view(torch.uint8).tolist())
