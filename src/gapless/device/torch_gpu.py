"""What a program uses of torch's GPU, asked from outside of it: classes, calls, the backward thread."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch
from torch.autograd import grad

from gapless.device.torch_private import call_when_cuda_starts, is_multithreading_enabled


if TYPE_CHECKING:
    from collections.abc import Callable


# Weak references to those of CUDA lead to freed memory once they are gone (torch 2.10 to 2.12).
STREAM_TYPES: tuple[type, ...] = (
    torch.Stream,
    torch.cuda.Stream,
    torch.Event,
    torch.cuda.Event,
)


def is_gpu_in_use() -> bool:
    """Return whether this process has used a GPU so far; asking does not begin to."""
    return bool(torch.cuda.is_initialized())


def call_when_gpu_is_used(function: Callable[[], None]) -> None:
    """Call a function once this process begins to use a GPU; at once if it has."""
    call_when_cuda_starts(function)


def name_of_device() -> str:
    """Return the name of the GPU in use, such as "NVIDIA H200"; "cpu" if none is."""
    return torch.cuda.get_device_name() if is_gpu_in_use() else "cpu"


def cuda_version() -> str:
    """Return the version of CUDA that torch was built for; empty if it was built for none."""
    return torch.version.cuda or ""


def synchronize() -> None:
    """Wait until the GPU in use has done everything that was queued.

    Sync: Blocks the host.
    """
    if is_gpu_in_use():
        torch.cuda.synchronize()


def graph_class() -> type | None:
    """Return the class whose `replay` a program calls; None where torch has no support for a GPU."""
    return torch.cuda.CUDAGraph if torch.backends.cuda.is_built() else None


def has_made_graphs() -> bool:
    """Return whether there are CUDA graphs in this process; all objects are looked at."""
    kind = graph_class()
    return kind is not None and any(issubclass(type(one), kind) for one in gc.get_objects())


# --- the thread that runs the backward passes of a GPU ---

# cuDNN keeps what it knows of a shape for each thread. With `torch.backends.cudnn.benchmark` the first
# run of a shape on a thread times several kernels and takes the quickest: another thread may take
# another one, with other bits, and no capture allows it. So whoever watches a run whose bits count
# leaves its backward pass to this thread.


def has_kernels_of_its_own(device: torch.device) -> bool:
    """Return whether backward passes run on a thread that chooses other kernels than this one."""
    return device.type == "cuda" and torch.backends.cudnn.benchmark and is_multithreading_enabled()


def call_on_backward_thread(function: Callable[[], object], device: torch.device) -> None:
    """Call a function on the thread that runs the backward passes of a GPU.

    Torch keeps Python's state of that thread, a profile function among it, for good
    (`PythonEngine::thread_init`).

    Sync: Does not block the host, unless the function does.
    """

    def call(_: object) -> None:
        function()

    with torch.inference_mode(mode=False), torch.enable_grad():
        weight = torch.ones((), device=device, requires_grad=True)
        out = weight * weight
        assert out.grad_fn is not None
        out.grad_fn.register_prehook(call)
        # Not `torch.autograd.grad`: who watches a run replaces that, and would take this for the run's own.
        grad(out, weight)
