"""The thread of torch's that runs the backward passes of a GPU.

cuDNN keeps what it knows of a shape for each thread. With `torch.backends.cudnn.benchmark` the first
run of a shape on a thread times several kernels and takes the quickest: another thread may take
another one, with other bits, and no capture allows it. So whoever watches a run whose bits count
leaves its backward pass to this thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gapless.device.torch_private import is_multithreading_enabled


if TYPE_CHECKING:
    from collections.abc import Callable


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
        torch.autograd.grad(out, weight)
