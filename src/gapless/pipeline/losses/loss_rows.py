"""Rows of numbers that stay on the device until a copy brings many of them to the host.

A fixed ring of float64 rows lies on the device; a ring of the same size lies in page-locked memory.
Row `n % num_rows` holds step `n` in both. A number that is on the host already never goes to the
device: it waits beside its row.

With several ranks all numbers go to the device, where the rows of all ranks are gathered before they
are copied, and what the host reads are the means over the ranks.

Nothing here prevents overwriting; `LossRing` does: a row is written again only after the host has read
it, because a row that was read has been computed and copied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gapless.device.torch_private import foreach_copy_


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device, Stream
    from gapless.ranks import Peers


# What torch copies into float64 for many tensors in one launch; of any other dtype, one by one.
_COPIED_IN_ONE_LAUNCH = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}


class LossRows:
    """A ring of rows on the device, and its copy on the host.

    Args:
        device: where the rows are.
        num_rows: in the ring.
        num_columns: numbers in a row; the last is the weight of the others.
        ranks: that write the same rows; None: the process trains alone.
        skips_on_all_ranks: whether a value that is not finite and has no weight means that all ranks
            skipped the step, which is then left out of means. Otherwise only that rank is left out.

    Attributes:
        memory: of the rows on the device.
        made: marks the end of the work that was queued before on the stream that was current when
            the ring was made. Other streams wait for it before they write.
        num_columns: as given.
    """

    def __init__(
        self,
        device: Device,
        *,
        num_rows: int,
        num_columns: int,
        ranks: Peers | None = None,
        skips_on_all_ranks: bool = True,
    ) -> None:
        self._skips_on_all_ranks = skips_on_all_ranks
        self.num_columns = num_columns
        self._ranks = ranks
        self._gathered: list[torch.Tensor] = []
        self._device = device
        self._num_rows = num_rows
        shape, num_bytes = (num_rows, num_columns), num_rows * num_columns * 8
        world = 1 if ranks is None else ranks.world
        # Memory of inference mode could not be written outside of it. The mode by position, because
        # torch.compile takes no keyword there.
        with torch.inference_mode(False):
            self.memory = device.device_buffer(num_bytes).view(torch.float64).view(shape)
            pinned = device.host_buffer(world * num_bytes, pinned=True)
            self._host_rows = list(pinned.view(torch.float64).view(world, *shape))
        self.made = device.create_event()
        device.record_event(self.made, device.current_stream())
        # A view costs as much as a fifth of a launch, so that each is made once.
        self._views: list[Sequence[torch.Tensor]] = [()] * num_rows
        self._on_host: list[list[float | None]] = [[None] * num_rows for _ in range(num_columns)]

    def write(self, number: int, numbers: Sequence[torch.Tensor | float]) -> bool:
        """Write the row of a step; return whether the device has a part in it.

        Args:
            number: of the step.
            numbers: one for each column. Tensors without dimensions are copied on the current
                stream, all of one dtype in one launch.

        Sync: Does not block the host.
        """
        place = number % self._num_rows
        views = self._views[place] or self._make_views(place)
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for found, view, on_host in zip(numbers, views, self._on_host, strict=True):
            if isinstance(found, float) and self._ranks is None:
                on_host[place] = found
            elif isinstance(found, float):
                view.fill_(found)
            else:
                on_host[place] = None
                targets.append(view)
                sources.append(found)
        if sources:
            _copy(targets, sources)
        return bool(sources) or self._ranks is not None

    def gather(self, start: int, end: int, *, for_stream: Stream) -> None:
        """Gather the rows of all ranks on the current stream; with one rank there is nothing to do.

        Args:
            start: first of these steps.
            end: the one after the last.
            for_stream: will copy them to the host.

        Raises:
            RanksError: another rank is gone.

        Sync: Does not block the host on a GPU.
        """
        if self._ranks is None:
            return
        with torch.inference_mode(False):
            self._gathered = [
                self._ranks.gather_rows(self.memory[first:last])
                for first, last in self._ranges(start, end)
            ]
        for gathered in self._gathered:
            self._device.record_stream(gathered, for_stream)

    def take_part(self, start: int, end: int) -> None:
        """Let other ranks gather rows of steps that this one has not; what is gathered means nothing.

        Sync: Does not block the host on a GPU.
        """
        assert self._ranks is not None
        with torch.inference_mode(False):
            for first, last in self._ranges(start, end):
                self._ranks.gather_rows(self.memory[first:last])

    def copy_to_host(self, start: int, end: int) -> None:
        """Queue the copy of the rows of steps `start` to `end` on the current stream.

        Sync: Does not block the host.
        """
        ranges = self._ranges(start, end)
        if self._ranks is None:
            for first, last in ranges:
                self._device.copy(self._host_rows[0][first:last], self.memory[first:last])
            return
        for (first, last), gathered in zip(ranges, self._gathered, strict=True):
            for host_rows, rows in zip(self._host_rows, gathered, strict=True):
                self._device.copy(host_rows[first:last], rows)
        self._gathered = []

    def read(self, start: int, end: int) -> list[list[float]]:
        """Return the columns of the rows of steps `start` to `end`, whose copy is done.

        Sync: Does not block the host.
        """
        columns: list[list[float]] = [[] for _ in range(self.num_columns)]
        for first, last in self._ranges(start, end):
            of_ranks = [rows[first:last].t().tolist() for rows in self._host_rows]
            copied = of_ranks[0]
            if self._ranks is not None:
                copied = _mean_of_ranks(of_ranks, skips_on_all_ranks=self._skips_on_all_ranks)
            for column, late, on_host in zip(columns, copied, self._on_host, strict=True):
                column += _merged(late, on_host[first:last])
        return columns

    def _make_views(self, place: int) -> Sequence[torch.Tensor]:
        with torch.inference_mode(False):
            views = self.memory[place].unbind()
        self._views[place] = views
        return views

    def _ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the slices of the ring that hold the rows of steps `start` to `end`."""
        if start == end:
            return []
        first, last = start % self._num_rows, end % self._num_rows
        if first < last:
            return [(first, last)]
        return [(first, self._num_rows), *([(0, last)] if last else [])]


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy numbers of any dtype into float64, those of one dtype in one launch."""
    for dtype in dict.fromkeys([source.dtype for source in sources]):
        some, same = targets, [source for source in sources if source.dtype is dtype]
        if len(same) < len(sources):
            pairs = zip(targets, sources, strict=True)
            some = [target for target, source in pairs if source.dtype is dtype]
        if dtype in _COPIED_IN_ONE_LAUNCH:
            foreach_copy_(some, same)
        else:
            for target, source in zip(some, same, strict=True):
                target.copy_(source)


def _mean_of_ranks(
    of_ranks: list[list[list[float]]], *, skips_on_all_ranks: bool
) -> list[list[float]]:
    """Return the columns of weighted means over ranks, and the sums of weights.

    A value that is not finite on one rank makes the mean not finite. If it has no weight, that rank is left
    out; or, if all ranks skip such a step, the value stays and the weight of the step is 0.
    """
    *values, weights = [
        list(zip(*columns, strict=True)) for columns in zip(*of_ranks, strict=True)
    ]
    if not skips_on_all_ranks:
        means = [list(map(_mean_with_weight, column, weights)) for column in values]
        return [*means, list(map(math.fsum, weights))]
    means = [list(map(_mean, column, weights)) for column in values]
    return [*means, list(map(_weight, zip(*values, strict=True), weights))]


def _mean_with_weight(values: tuple[float, ...], weights: tuple[float, ...]) -> float:
    pairs = [pair for pair in zip(values, weights, strict=True) if pair[1]]
    return _mean(*zip(*pairs, strict=True)) if pairs else values[0]


def _mean(values: tuple[float, ...], weights: tuple[float, ...]) -> float:
    for value in values:
        if not math.isfinite(value):
            return value
    total = math.fsum(weights)
    if not total:
        return values[0]
    return math.fsum(map(float.__mul__, values, weights)) / total


def _weight(values: tuple[tuple[float, ...], ...], weights: tuple[float, ...]) -> float:
    is_left_out = any(
        not weight and not all(math.isfinite(column[rank]) for column in values)
        for rank, weight in enumerate(weights)
    )
    return 0.0 if is_left_out else math.fsum(weights)


def _merged(late: list[float], known: list[float | None]) -> list[float]:
    """Return the numbers that were known, and in place of the others those that came late."""
    if known.count(None) == len(known):
        return late
    pairs = zip(late, known, strict=True)
    return [number if found is None else found for number, found in pairs]
