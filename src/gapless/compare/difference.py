"""Where two runs differ, and by how much."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.compare.model_state import Entry


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.compare.plan_run import RunRecord


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Two losses of one step.

    Attributes:
        step: counted from 1.
        ours: of the first run.
        theirs: of the second run.
    """

    step: int
    ours: float
    theirs: float

    @property
    def size(self) -> float:
        """Distance of the two; NaN if one of them is."""
        return abs(self.ours - self.theirs)


@dataclass(frozen=True, kw_only=True)
class Elements:
    """How two tensors of one shape differ.

    Attributes:
        num_differing: elements whose bits differ.
        num_elements: of the tensor.
        max_abs: largest distance of two elements; NaN if one of a pair is NaN.
    """

    num_differing: int
    num_elements: int
    max_abs: float


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """The first tensor that differs between two runs.

    Attributes:
        step: after which it differs, counted from 1; 0 is before the first step.
        name: of the tensor.
        detail: what differs besides values, such as the shape; None if only values do.
        num_tensors: tensors that differ after this step.
        num_compared: tensors that were compared after this step.
    """

    step: int
    name: str
    detail: str | None
    num_tensors: int
    num_compared: int


def first_loss_difference(ours: RunRecord, theirs: RunRecord) -> LossDifference | None:
    """Return the first loss whose bits differ."""
    for step, pair in enumerate(zip(ours.losses, theirs.losses, strict=True), start=1):
        if not _same_bits(*pair):
            return LossDifference(step=step, ours=pair[0], theirs=pair[1])
    return None


def first_tensor_difference(ours: RunRecord, theirs: RunRecord) -> TensorDifference | None:
    """Return the first tensor whose bits, shape or kind differ.

    Tensors off the device are looked at after the last step only.
    """
    for step in range(len(ours.checksums)):
        mine, other = _by_entry(ours, step), _by_entry(theirs, step)
        if mine != other:
            return _difference(step, mine, other)
    kept, others = _by_bits(ours), _by_bits(theirs)
    return _difference(ours.num_steps, kept, others) if kept != others else None


def _by_entry(run: RunRecord, step: int) -> dict[Entry, int]:
    return dict(zip(run.entries[step], run.checksums[step], strict=True))


def _by_bits(run: RunRecord) -> dict[Entry, bytes]:
    return {Entry.of(name, tensor): _bits(tensor) for name, tensor in run.kept.items()}


def _difference(
    step: int, ours: Mapping[Entry, object], theirs: Mapping[Entry, object]
) -> TensorDifference:
    both = {entry.name: None for entry in (*ours, *theirs)}
    shapes = [{entry.name: entry for entry in side} for side in (ours, theirs)]
    differing = [
        name
        for name in both
        if shapes[0].get(name) != shapes[1].get(name)
        or ours[shapes[0][name]] != theirs[shapes[1][name]]
    ]
    mine, other = (side.get(differing[0]) for side in shapes)
    detail = None
    if mine != other:
        detail = f"is {mine or 'absent'} in one and {other or 'absent'} in the other"
    return TensorDifference(
        step=step,
        name=differing[0],
        detail=detail,
        num_tensors=len(differing),
        num_compared=len(both),
    )


def element_difference(ours: torch.Tensor, theirs: torch.Tensor) -> Elements:
    """Compare two tensors on the host, of one shape and kind, by bits and by values."""
    differs = (_as_bytes(ours) != _as_bytes(theirs)).any(dim=-1)
    distances = (_as_numbers(ours) - _as_numbers(theirs)).abs().reshape(-1)[differs]
    return Elements(
        num_differing=int(differs.sum()),
        num_elements=ours.numel(),
        max_abs=float(distances.max()) if len(distances) else 0.0,
    )


def relative_difference(ours: float, theirs: float) -> float:
    """Return |a - b| / max(|a|, |b|): 0 for equal numbers and two NaNs, infinite for one NaN."""
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return 0.0
    distance = abs(ours - theirs)
    return distance / max(abs(ours), abs(theirs)) if math.isfinite(distance) else math.inf


def relative_tensor_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return max |a - b| / max(|a|, |b|), both over all elements of two tensors on the host."""
    if Entry.of("", ours) != Entry.of("", theirs):
        return math.inf
    mine, other = _as_numbers(ours), _as_numbers(theirs)
    differs = (mine != other) & ~(mine.isnan() & other.isnan())
    if not differs.any():
        return 0.0
    distance = float((mine - other)[differs].abs().max())
    if not math.isfinite(distance):
        return math.inf
    sizes = torch.stack([mine, other]).abs()
    return distance / float(sizes[sizes.isfinite()].max())


def _same_bits(ours: float, theirs: float) -> bool:
    return struct.pack("d", ours) == struct.pack("d", theirs)


def _bits(tensor: torch.Tensor) -> bytes:
    return _as_bytes(tensor).numpy().tobytes()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element, [elements, bytes], uint8."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
