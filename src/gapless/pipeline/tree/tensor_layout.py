"""What of a tensor a graph depends on beside its values: shape, strides, alignment, dtype, device."""

from __future__ import annotations

from functools import partial
from itertools import compress, repeat
from operator import mod
from typing import TYPE_CHECKING, Final

import torch

from gapless.device.torch_private import tensor_guards


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


# Bytes that a kernel of a GPU reads at once, at most.
ALIGNMENT: Final = 16


def twins_among(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return for each tensor the number of the first that is the same object; () if none occurs twice.

    `nn.MultiheadAttention` asks whether its query is its key, and runs other kernels if so.
    """
    ids = list(map(id, tensors))
    return () if len(set(ids)) == len(ids) else tuple(map(ids.index, ids))


def has_address(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory of one piece."""
    return tensor.layout is torch.strided and not tensor.is_nested


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; () for a nested one, which has several."""
    return () if tensor.is_nested else tensor.shape


def has_alignment(tensor: torch.Tensor) -> bool:
    """Return whether bits may depend on where a tensor begins: those of sums that are rounded do.

    Sync: Does not block the host.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()) or not has_address(tensor):
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # within a transform of torch.func there is no memory
        return False
    return True


def misalignment(tensor: torch.Tensor) -> int:
    """Return by how many bytes a tensor begins after a multiple of 16; 0 where no bits depend on it.

    Sync: Does not block the host.
    """
    return tensor.data_ptr() % ALIGNMENT if has_alignment(tensor) else 0


def stride_of(tensor: torch.Tensor) -> Hashable:
    """Return a tensor's strides, or its layout where it has none."""
    return tensor.stride() if has_address(tensor) else tensor.layout


def kind_of(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """Return dtype and device of a tensor, and whether it is one of inference mode."""
    return tensor.dtype, tensor.device, tensor.is_inference()


class LayoutComparison:
    """Says whether one graph can take some tensors as well as others.

    Attributes:
        check: torch's own comparison of the tensors.
        have_alignment: of which of them bits depend on where they begin.
        misalignments: of these.
        twins: as of `twins_among`.
    """

    __slots__ = ("check", "have_alignment", "misalignments", "twins")

    def __init__(self, check: Callable[..., bool], tensors: Sequence[torch.Tensor]) -> None:
        self.check = check
        self.have_alignment = list(map(has_alignment, tensors))
        self.misalignments = list(map(misalignment, compress(tensors, self.have_alignment)))
        self.twins = twins_among(tensors)

    def __call__(self, *others: torch.Tensor) -> bool:
        """Return whether a graph can take these."""
        addresses = map(torch.Tensor.data_ptr, compress(others, self.have_alignment))
        return (
            self.check(*others)
            and list(map(mod, addresses, ALIGNMENTS)) == self.misalignments
            and twins_among(others) == self.twins
        )


# What shows, where there are no tensors, whether the modes are those of now.
_ALWAYS: Final = torch.empty(0, device="cpu")

# Second arguments, as many as are asked for.
ALIGNMENTS: Final = repeat(ALIGNMENT)


def comparison_with(tensors: Sequence[torch.Tensor]) -> LayoutComparison | None:
    """Return what takes as many tensors and says whether one graph can take them as well.

    Type, dtype, device, shape, strides, alignment and `requires_grad` must be the same, tensors that were
    one object must be one again, and the dispatch modes of torch must be those of now. None if torch has
    no guards for these tensors.

    Sync: Does not block the host.
    """
    check = tensor_guards(tensors or (_ALWAYS,))
    if check is None:
        return None
    return LayoutComparison(check if tensors else partial(check, _ALWAYS), tensors)
