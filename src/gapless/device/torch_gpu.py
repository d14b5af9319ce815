"""What a program uses of torch's GPU, asked from outside of it: classes, calls, the backward thread."""

from __future__ import annotations

import gc
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import grad

from gapless.device.torch_private import (
    DisableTorchFunction,
    call_when_cuda_starts,
    current_graph_task,
    is_multithreading_enabled,
    next_sequence_number,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle


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


def call_after_replays(function: Callable[[], None]) -> RemovableHandle | None:
    """Call a function after each replay of a graph, whoever has made it; None before torch 2.14.

    Torch drops what the function raises, but for what is no `Exception`.
    """
    register: Any = getattr(torch.cuda.graphs, "register_graph_replay_end_hook", None)
    return None if register is None else register(lambda _: function())


def has_made_graphs() -> bool:
    """Return whether there are CUDA graphs in this process; all objects are looked at."""
    kind = graph_class()
    return kind is not None and any(issubclass(type(one), kind) for one in gc.get_objects())


# --- the thread that runs the backward passes of a GPU ---

# cuDNN keeps what it knows of a shape for each thread. With `torch.backends.cudnn.benchmark` the first
# run of a shape on a thread times several kernels and takes the quickest: another thread may take
# another one, with other bits, and no capture allows it. Autograd numbers its nodes for each thread, and
# sums in the order of numbers. So whoever watches a run whose bits count leaves its backward pass to
# this thread.

# For each device a node whose backward pass runs there. It is made once, by a thread of its own, as each
# node takes one of the numbers that its thread has.
_WAYS: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


def has_backward_thread(device: torch.device) -> bool:
    """Return whether backward passes run on another thread than the one that calls them.

    Within a backward pass they do not, such as where a checkpointed part runs again.
    """
    return device.type == "cuda" and is_multithreading_enabled() and current_graph_task() == -1


def call_on_backward_thread(function: Callable[[], object], device: torch.device) -> None:
    """Call a function on the thread that runs the backward passes of a GPU.

    Torch keeps Python's state of that thread, a profile function among it, for good
    (`PythonEngine::thread_init`).

    Sync: Does not block the host, unless the function does.
    """

    def call(_: object) -> None:
        function()

    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device not in _WAYS:
        maker = Thread(target=_make_way, args=(device,))
        maker.start()
        maker.join()
    weight, out = _WAYS[device]
    assert out.grad_fn is not None
    hook = out.grad_fn.register_prehook(call)
    try:
        # Not `torch.autograd.grad`: who watches a run replaces that, and would take this for the run's own.
        # A mode, such as that of a default device, would be handed it all the same.
        with DisableTorchFunction():
            grad(out, weight, retain_graph=True)
    finally:
        hook.remove()


def _make_way(device: torch.device) -> None:
    weight = torch.ones((), device=device, requires_grad=True)
    _WAYS[device] = weight, weight * weight


def numbers_of_next_nodes(device: torch.device) -> tuple[int, int] | None:
    """Return which numbers the next nodes of this thread and of the backward thread get; None if it is this one.

    Sync: Does not block the host.
    """
    if not has_backward_thread(device):
        return None
    of_backward: list[int] = []
    call_on_backward_thread(lambda: of_backward.append(next_sequence_number()), device)
    return next_sequence_number(), of_backward[0]


def make_nodes(num: int) -> None:
    """Let this thread take some numbers of nodes."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        one, pair = torch.zeros((), device="cpu", requires_grad=True), torch.zeros(2, device="cpu")
        for start in range(0, num, _NUM_AT_ONCE):
            torch.broadcast_tensors(*[one] * min(num - start, _NUM_AT_ONCE), pair)


_NUM_AT_ONCE = 1_000
