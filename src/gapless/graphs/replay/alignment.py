"""Where tensors begin in memory, as far as the bits of a result depend on it.

A kernel reads 16 bytes at once where a tensor begins at a multiple of 16, and otherwise the first few
elements alone, so that it adds up in another order (`aten/src/ATen/native/cuda/MemoryAccess.cuh` and
`Reduce.cuh`; cuBLAS chooses kernels by alignment as well). So what a graph reads, and what it hands out, begins
as it does in the step as written.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from gapless.pipeline.tree.tensor_layout import misalignment


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def inference_mode(*, is_on: bool) -> AbstractContextManager[None]:
    """Make tensors of inference mode in the body, or others, whatever the mode around it.

    Where the mode changes, the body has no gradients: `torch.inference_mode(False)` alone would enable them.
    """
    if torch.is_inference_mode_enabled() is is_on:
        return nullcontext()
    return _changed(is_on)


@contextmanager
def _changed(is_on: bool) -> Iterator[None]:
    with torch.inference_mode(is_on), torch.no_grad():
        yield


def clone_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a clone that begins as the tensor does, and is one of inference mode if the tensor is.

    Sync: Does not block the host.
    """
    with inference_mode(is_on=tensor.is_inference()):
        return aligned_as(tensor.clone(), misalignment(tensor))


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides and alignment, of inference mode if the tensor is.

    Sync: Does not block the host.
    """
    with inference_mode(is_on=tensor.is_inference()):
        return aligned_as(with_strides(tensor), misalignment(tensor))


def with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides; a clone has others if the tensor leaves out memory.

    Sync: Does not block the host.
    """
    copy = tensor.clone()
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return copy
    if copy.stride() == tensor.stride():
        return copy
    once = tensor
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(dim) > 1:
            once = once.narrow(dim, 0, 1)
    copy = torch.empty_strided(
        once.size(), once.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(once).expand(tensor.size())


def aligned_as(copy: torch.Tensor, number: int) -> torch.Tensor:
    """Return a copy that begins so many bytes after a multiple of 16.

    Args:
        copy: in memory of its own; returned as it is if it begins so, or is of a subclass.
        number: as `misalignment` returns it.

    Sync: Does not block the host.
    """
    if type(copy) is not torch.Tensor or misalignment(copy) == number:
        return copy
    count = _span(copy)
    target = memory_at(count, number, like=copy)
    target.copy_(copy.detach().as_strided((count,), (1,)))
    return target.as_strided(copy.size(), copy.stride())


def memory_at(count: int, number: int, *, like: torch.Tensor) -> torch.Tensor:
    """Return new memory for so many elements, that begins so many bytes after a multiple of 16.

    Args:
        count: of elements.
        number: a multiple of an element's size.
        like: a tensor of the wanted dtype and device.

    Sync: Does not block the host.
    """
    before = number // like.element_size()
    return like.new_empty(before + count)[before:]


def _span(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)
