"""What makes the host wait for a device: operations that read values, and copies that block. No torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Sequence


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
        num_bytes: at the target.
        pinned: whether the tensor on the host is page-locked.
        is_same_type: whether both have the same dtype.
        is_dense: whether both lie in memory in the same order without holes.
    """

    to_device: bool
    non_blocking: bool
    num_bytes: int
    pinned: bool
    is_same_type: bool
    is_dense: bool


def why_it_blocks(copy: Copy) -> CopyCause | None:
    """Return why a copy blocks; None if it does not."""
    if copy.num_bytes == 0:
        return None
    if not copy.non_blocking:
        return "copy" if copy.to_device else "cpu"
    if copy.to_device and copy.num_bytes <= MAX_INLINE_COPY_BYTES:
        return None
    if not copy.pinned:
        return "pageable copy"
    if not copy.is_dense:
        return "strided copy"
    # Torch converts the dtype on the host before a copy to a device, into pageable memory.
    return "pageable copy" if copy.to_device and not copy.is_same_type else None


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
