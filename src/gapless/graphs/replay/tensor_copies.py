"""Copies of tensors that a graph overwrites.

All of one dtype are made in one launch, with the strides of the originals. Tensors that share memory,
such as a tensor and a view of it, share it in the copies as well.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

import torch

from gapless.graphs.replay.alignment import inference_mode, memory_at
from gapless.pipeline.tree.tensor_layout import misalignment


# Of these `min(x, inf)` has all bits of x, those of NaN included.
_KEPT_BY_CLAMP = (torch.float32, torch.float64)

# Of these neither that nor torch's copy of many tensors keeps the payload of a NaN, on a GPU.
_HALF = (torch.float16, torch.bfloat16)


class TensorCopies:
    """Copies of the same tensors, made any number of times.

    A copy of a tensor of inference mode is one as well, whatever the mode of the caller.

    Args:
        tensors: all different.
        apart: whether each copy has memory of its own, whatever the tensors share.

    Attributes:
        only: one tensor whose clone, made outside of inference mode, is all there is to do; otherwise None.
    """

    def __init__(self, tensors: list[torch.Tensor], *, apart: bool = False) -> None:
        self._tensors = tensors
        found = {
            mode: [one for one in tensors if one.is_inference() is mode] for mode in (False, True)
        }
        # Those of each mode are copied apart from those of the other.
        self._modes = [(mode, _Copies(part, apart=apart)) for mode, part in found.items() if part]
        self.only = self._modes[0][1].only if found[False] and not found[True] else None

    def make(self) -> list[torch.Tensor]:
        """Return a copy of each tensor.

        Sync: Does not block the host.
        """
        made: dict[int, torch.Tensor] = {}
        for mode, copies in self._modes:
            with inference_mode(is_on=mode):
                found = copies.make()
            if len(self._modes) == 1:
                return found
            made |= zip(map(id, copies.originals), found, strict=True)
        return [made[id(tensor)] for tensor in self._tensors]


class _Copies:
    """Copies of tensors of one mode, which have that of the caller."""

    def __init__(self, originals: list[torch.Tensor], *, apart: bool) -> None:
        self.originals = originals
        self._lazy = [at for at, one in enumerate(originals) if one.is_conj() or one.is_neg()]
        self._tensors = tensors = [_in_memory(one) for one in originals]
        plain = [tensor for tensor in tensors if _is_plain(tensor)]
        blocks = [_Block([tensor]) for tensor in plain] if apart else _blocks(plain)
        self._groups = _by_dtype(blocks)
        self._others = [tensor for tensor in tensors if not _is_plain(tensor)]
        self.only: torch.Tensor | None = None
        if len(blocks) == len(tensors) == 1 and blocks[0].is_dense and not self._lazy:
            self.only = blocks[0].source

    def make(self) -> list[torch.Tensor]:
        if self.only is not None:
            return [self.only.clone()]
        copied = {id(other): other.detach().clone() for other in self._others}
        for blocks in self._groups:
            for block, target in zip(blocks, _copies_of(blocks), strict=True):
                block.give(target, copied)
        found = [copied[id(tensor)] for tensor in self._tensors]
        for at in self._lazy:
            found[at] = _in_form_of(self.originals[at], found[at])
        return found


class _Block:
    """Memory that is copied at once: one tensor, or all of what several tensors share.

    Args:
        tensors: that share a storage and a dtype, or one tensor.

    Attributes:
        source: a view of the memory.
        is_dense: whether it is one aligned tensor without gaps or overlaps, which a clone repeats.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        first = tensors[0].detach()
        self._tensors = [(id(tensor), tensor) for tensor in tensors]
        self._is_whole = len(tensors) == 1 and not torch._debug_has_internal_overlap(first)
        has_strides_of_empty = torch.empty_like(first).stride() == first.stride()
        self._start = min(tensor.storage_offset() for tensor in tensors)
        self.source = first
        num_elements = int(max(map(end_of, tensors)) - self._start)
        if not self._is_whole:
            self.source = first.as_strided((num_elements,), (1,), self._start)
        self._misalignment = misalignment(self.source)
        self._num_elements = num_elements
        self.is_dense = self._is_whole and has_strides_of_empty and not self._misalignment

    def new_memory(self) -> torch.Tensor:
        """Return memory for a copy of the source, with its strides and alignment."""
        if self._misalignment:
            room = memory_at(self._num_elements, self._misalignment, like=self.source)
            return room.as_strided(self.source.size(), self.source.stride())
        if self.is_dense or not self._is_whole:
            return torch.empty_like(self.source)
        return self.source.new_empty_strided(self.source.size(), self.source.stride())

    def give(self, target: torch.Tensor, copied: dict[int, torch.Tensor]) -> None:
        """Add the copies of all tensors, which lie in a copy of the memory."""
        if self._is_whole:
            copied[self._tensors[0][0]] = target
            return
        shift = target.storage_offset() - self._start
        for number, tensor in self._tensors:
            offset = tensor.storage_offset() + shift
            copied[number] = target.as_strided(tensor.size(), tensor.stride(), offset)


def _copies_of(blocks: list[_Block]) -> list[torch.Tensor]:
    """Return copies of the memory of blocks of one dtype."""
    sources = [block.source for block in blocks]
    if all(block.is_dense for block in blocks):
        if len(blocks) == 1:
            return [sources[0].clone()]
        if sources[0].dtype in _KEPT_BY_CLAMP:
            # In one call, memory for the copies included. A comparison changes no bit.
            return list(torch._foreach_clamp_max(sources, inf))
    targets = [block.new_memory() for block in blocks]
    torch._foreach_copy_(_bits_of(targets), _bits_of(sources))
    return targets


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies in memory for a conjugate or a negative that torch has not computed yet."""
    if tensor.is_conj():
        tensor = tensor.detach().conj()
    return tensor.detach()._neg_view() if tensor.is_neg() else tensor


def _in_form_of(like: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Return a copy of what lies in memory as a conjugate or a negative again."""
    copy = copy._neg_view() if like.is_neg() else copy
    return copy.conj() if like.is_conj() else copy


def _bits_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of one dtype as those that a copy of many keeps all bits of."""
    if tensors[0].dtype not in _HALF:
        return tensors
    return [tensor.view(torch.int16) for tensor in tensors]


def end_of(tensor: torch.Tensor) -> int:
    """Return the offset behind a tensor's last element in its storage."""
    start = int(tensor.storage_offset())
    if not tensor.numel():
        return start
    sizes = zip(tensor.size(), tensor.stride(), strict=True)
    return start + sum((size - 1) * stride for size, stride in sizes) + 1


def _blocks(tensors: list[torch.Tensor]) -> list[_Block]:
    alike: dict[tuple[int, torch.dtype], list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        alike[tensor.untyped_storage()._cdata, tensor.dtype].append(tensor)
    return [_Block(found) for found in alike.values()]


def _by_dtype(blocks: list[_Block]) -> list[list[_Block]]:
    """Return blocks in groups, each of which is copied in one launch."""
    groups: dict[torch.dtype, list[_Block]] = defaultdict(list)
    for block in blocks:
        groups[block.source.dtype].append(block)
    return list(groups.values())


def _is_plain(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_plain and tensor.layout is torch.strided and not tensor.is_nested
