"""Where tensors lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def address_of(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor from that of others while both are alive."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def lie_as_now(tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """Return a function that says whether all tensors still lie where they lie now.

    Sync: The function does not block the host.
    """
    tensors = [tensor for tensor in tensors if has_address(tensor)]
    if not tensors:
        return lambda: True
    lie_there = lie_where(tensors)
    return lambda: lie_there(tensors)


def lie_where(tensors: Sequence[torch.Tensor]) -> Callable[[list[torch.Tensor]], bool]:
    """Return a function that says whether as many other tensors lie where these lie now.

    Sync: The function does not block the host.
    """
    addresses = list(map(torch.Tensor.data_ptr, tensors))
    return lambda others: list(map(torch.Tensor.data_ptr, others)) == addresses


def share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether any two of these tensors, of those with elements, lie in one storage."""
    addresses = [address_of(tensor) for tensor in tensors if tensor.numel()]
    return len(set(addresses)) < len(addresses)


# Of a larger storage nobody looks which elements are whose.
_MOST_ELEMENTS = 1 << 24


def have_elements_in_common(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether any two tensors have elements of one memory in common; parts of a `chunk` have none.

    Sync: Does not block the host.
    """
    by_address: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_address.setdefault(address_of(tensor), []).append(tensor)
    return any(len(some) > 1 and _overlap(some) for some in by_address.values())


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether any two tensors of one storage overlap, by marks on the host."""
    first = tensors[0]
    num = first.untyped_storage().nbytes() // first.element_size()
    if any(one.dtype != first.dtype for one in tensors) or num > _MOST_ELEMENTS:
        return True
    marks = torch.zeros(num, dtype=torch.bool, device="cpu")
    for one in tensors:
        pairs = zip(one.size(), one.stride(), strict=True)
        size = [1 if stride == 0 else length for length, stride in pairs]
        marked = marks.as_strided(size, one.stride(), int(one.storage_offset()))
        if marked.any():
            return True
        marked.fill_(True)
    return False
