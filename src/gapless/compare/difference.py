"""Find where two runs differ, and by how much."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

from gapless.compare.training_state import TensorInfo
from gapless.device.bits import bytes_of, same_bits
from gapless.records.verification import (
    Closeness,
    ElementDifference,
    LossDifference,
    TensorDifference,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.compare.recorded_run import RecordedRun


def first_loss_difference(ours: RecordedRun, theirs: RecordedRun) -> LossDifference | None:
    """Return the first loss whose bits differ."""
    for step, mine, other in _pairs(ours, theirs):
        if not _is_same_number(mine, other):
            return LossDifference(step=step, ours=mine, theirs=other)
    return None


def first_tensor_difference(ours: RecordedRun, theirs: RecordedRun) -> TensorDifference | None:
    """Return the first tensor whose bits, shape or dtype differ.

    Tensors that are not on the device are compared only after the last step.
    """
    for step in range(len(ours.checksums)):
        mine, other = _by_tensor(ours, step), _by_tensor(theirs, step)
        if mine != other:
            return _difference(step, mine, other)
    kept, others = _by_bits(ours), _by_bits(theirs)
    return _difference(ours.summary.num_steps, kept, others) if kept != others else None


def _by_tensor(run: RecordedRun, step: int) -> dict[TensorInfo, int]:
    return dict(zip(run.tensors[step], run.checksums[step], strict=True))


def _by_bits(run: RecordedRun) -> dict[TensorInfo, _Bits]:
    return {TensorInfo.of(name, tensor): _Bits(tensor) for name, tensor in run.kept.items()}


class _Bits:
    """A tensor on the host that equals another one if all bits are the same."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and same_bits(self._tensor, other._tensor)

    __hash__ = None  # type: ignore[assignment]


def _difference(
    step: int, ours: Mapping[TensorInfo, object], theirs: Mapping[TensorInfo, object]
) -> TensorDifference:
    both = {tensor.name: None for tensor in (*ours, *theirs)}
    shapes = [{tensor.name: tensor for tensor in side} for side in (ours, theirs)]
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


def element_difference(ours: torch.Tensor, theirs: torch.Tensor) -> ElementDifference:
    """Compare two tensors on the host, of one shape and dtype, by bits and by values."""
    differs = (bytes_of(ours) != bytes_of(theirs)).any(dim=-1)
    distances = (_as_numbers(ours) - _as_numbers(theirs)).abs().reshape(-1)[differs]
    return ElementDifference(
        num_differing=int(differs.sum()),
        num_elements=ours.numel(),
        max_abs=float(distances.max()) if len(distances) else 0.0,
    )


def closeness(ours: RecordedRun, theirs: RecordedRun, *, tolerance: float) -> Closeness:
    """Return how far apart losses are, and tensors after the last step.

    Args:
        ours: the run in question, with the values of its last state.
        theirs: the reference, likewise.
        tolerance: largest relative difference that is allowed.
    """
    losses = [
        (relative_difference(mine, other), LossDifference(step=step, ours=mine, theirs=other))
        for step, mine, other in _pairs(ours, theirs)
    ]
    tensors = [
        (_relative(ours.kept.get(name), theirs.kept.get(name)), name)
        for name in {**ours.kept, **theirs.kept}
    ]
    return Closeness(
        tolerance=tolerance,
        first_loss=next((loss for size, loss in losses if size > tolerance), None),
        largest_loss=max(size for size, _ in losses),
        largest_tensor=max(tensors, key=lambda item: item[0], default=(0.0, "")),
        num_tensors_beyond=sum(size > tolerance for size, _ in tensors),
        num_tensors=len(tensors),
    )


def _pairs(ours: RecordedRun, theirs: RecordedRun) -> Iterator[tuple[int, float, float]]:
    """Yield number and both losses of every step."""
    losses = zip(ours.summary.losses, theirs.summary.losses, strict=True)
    yield from ((step, *pair) for step, pair in enumerate(losses, start=1))


def _relative(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> float:
    if ours is None or theirs is None:
        return math.inf
    return relative_tensor_difference(ours, theirs)


def relative_difference(ours: float, theirs: float) -> float:
    """Return |a - b| / max(|a|, |b|): 0 for equal numbers or two NaNs, infinite for one NaN."""
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return 0.0
    distance = abs(ours - theirs)
    return distance / max(abs(ours), abs(theirs)) if math.isfinite(distance) else math.inf


def relative_tensor_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return max |a - b| / max(|a|, |b|), both maxima over all elements; tensors on the host."""
    if TensorInfo.of("", ours) != TensorInfo.of("", theirs):
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


def _is_same_number(ours: float, theirs: float) -> bool:
    return struct.pack("d", ours) == struct.pack("d", theirs)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
