"""What makes the host wait for a device: operations that read values, and copies that block. No torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


# The driver takes so much pageable memory into its command buffer, and goes on at once. What is larger
# goes through a few buffers of its own: with work queued, an H200 took two copies of 128 KB and
# waited for the third, and for the first one of 4 MB.
MAX_INLINE_COPY_BYTES = 64 << 10

CopyCause = Literal["copy", "cpu", "pageable copy", "strided copy"]

Read = Literal["item", "bool", "float", "int", "index", "tolist", "cpu", "equal"]

# Methods of tensors that read values on the host, which waits for them if the tensor is on a device.
READING_METHODS: dict[str, Read] = {
    "item": "item",
    "__bool__": "bool",
    "__float__": "float",
    "__complex__": "float",
    "__int__": "int",
    "__index__": "index",
    "tolist": "tolist",
    "cpu": "cpu",
}

# Operators that return a value of a tensor to Python, as a profiler names them. Other reads are copies below.
READING_OPERATORS: dict[str, Read] = {
    "aten::_local_scalar_dense": "item",
    "aten::item": "item",
    "aten::is_nonzero": "bool",
    "aten::equal": "equal",
}


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy that crosses between the host and a device.

    Attributes:
        to_device: else it goes to the host.
        non_blocking: was asked for.
        num_bytes: that cross.
        is_pinned: whether the tensor on the host is page-locked; costs a call of the driver.
        is_direct: whether the copy uses the host's memory as it is, as in `is_direct`.
    """

    to_device: bool
    non_blocking: bool
    num_bytes: int
    is_pinned: Callable[[], bool]
    is_direct: Callable[[], bool]

    @staticmethod
    def between(
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        to_device: bool,
        non_blocking: bool,
        is_pinned: Callable[[torch.Tensor], bool],
    ) -> Copy:
        """Return the copy of one tensor into another one, dense or strided both."""
        # The device converts what is not to block, after it has crossed.
        carried = source if to_device and non_blocking else target
        return Copy(
            to_device=to_device,
            non_blocking=non_blocking,
            num_bytes=target.numel() * carried.dtype.itemsize,
            is_pinned=lambda: is_pinned(source if to_device else target),
            is_direct=lambda: is_direct(source, target, to_device=to_device),
        )

    @property
    def depends_on_memory(self) -> bool:
        """Whether the copy blocks only for what the host's memory is, which is then asked about."""
        if not self.non_blocking:
            return False
        return self.num_bytes > (MAX_INLINE_COPY_BYTES if self.to_device else 0)


def why_it_blocks(copy: Copy) -> CopyCause | None:
    """Return why a copy blocks; None if it does not.

    It is the one judgement of copies: of those that `count_waits` counts, and of those that the doctor finds.
    """
    if copy.num_bytes == 0:
        return None
    if not copy.non_blocking:
        return "copy" if copy.to_device else "cpu"
    if not copy.depends_on_memory:
        return None
    if not copy.is_pinned():
        return "pageable copy"
    return None if copy.is_direct() else "strided copy"


def is_direct(source: torch.Tensor, target: torch.Tensor, *, to_device: bool) -> bool:
    """Whether a copy that is not to block uses the host's memory as it is.

    If not, the host gathers into pageable memory, or scatters from it. The device converts, and gathers or scatters
    its own side.

    Source: `copy_kernel_cuda` in `aten/src/ATen/native/cuda/Copy.cu` of pytorch.
    """
    host, device = (source, target) if to_device else (target, source)
    if host.is_contiguous():
        return not to_device or host.numel() == device.numel()
    return (
        host.dtype == device.dtype
        and host.shape == device.shape
        and host.stride() == device.stride()
        and is_dense(host.shape, host.stride())
    )


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie side by side in memory, in whatever order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
