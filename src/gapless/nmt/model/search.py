"""The search for the translations of a batch of sentences, step by step.

Shape suffixes as in `incremental`, and B for the sentences that the batch began with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.nmt.model.hypotheses import NEVER
from gapless.nmt.model.slots import Shape, ladder, rounded_up


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device, Event
    from gapless.nmt.model.decode_settings import DecodeSettings
    from gapless.nmt.model.incremental import Incremental
    from gapless.nmt.model.slots import SlotMemory
    from gapless.pipeline.host_waits import HostWaits


# Steps between two reads of what is done.
_CPU_INTERVAL, _GPU_INTERVAL = 2, 4


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One translation.

    Attributes:
        ids: token ids without marks.
        score: log probability by the model / length ** a.
        is_cut: whether it ended at the longest length allowed, where the model would have gone on.
    """

    ids: list[int]
    score: float
    is_cut: bool = False


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What is copied to the host after some steps.

    Attributes:
        start: position of the first of these steps.
        sentences: which sentence of the batch each row is, [N].
        event: after the copies.
        steps, ended_scores, ended_at, is_done: as `Hypotheses` has them.
    """

    start: int
    sentences: np.ndarray
    event: Event
    steps: torch.Tensor
    ended_scores: torch.Tensor
    ended_at: torch.Tensor
    is_done: torch.Tensor


class Search:
    """Search for translations of a batch.

    Sentences that are done leave: those behind take their places in the front of the memory, and
    the steps go on with that part. What is done is read one interval late on a GPU, which always
    has steps to go on with; which steps are made depends on the sentences alone, not on time.

    Args:
        steps: of the decoder.
        memory: of the search.
        shape: that it begins with.
        settings: of the search.
        device: of the memory.
        host_waits: the door for its waits.
    """

    def __init__(
        self,
        steps: Incremental,
        memory: SlotMemory,
        shape: Shape,
        settings: DecodeSettings,
        *,
        device: Device,
        host_waits: HostWaits,
    ) -> None:
        self._steps = steps
        self._memory = memory
        self._shape = shape
        self._settings = settings
        self._device = device
        self._host_waits = host_waits
        self._position = 0
        self._sentences = np.arange(shape.sentences)
        self._is_done = np.zeros(shape.sentences, dtype=bool)
        self._scores = np.full((shape.sentences, shape.hypotheses), NEVER, dtype=np.float32)
        self._ended_at = np.zeros((shape.sentences, shape.hypotheses), dtype=np.int64)
        self._reads: list[_Read] = []

    def start(
        self,
        memories_NSD: Sequence[torch.Tensor],
        is_source: torch.Tensor,
        *,
        count: int,
        draws: torch.Tensor | None,
    ) -> None:
        """Take the sources.

        Args:
            memories_NSD: the sources as each model has encoded them.
            is_source: where they are no padding, [N, 1, S].
            count: number of sentences; what comes after them fills the batch.
            draws: numbers that samples are drawn by, [N, K, T].

        Sync: Does not block the host.
        """
        self._is_done[count:] = True
        slots = self._memory.slots(self._shape)
        self._steps.source(memories_NSD, out=slots.cache.source)
        slots.cache.is_source.copy_(torch.where(is_source.unsqueeze(1), 0.0, -torch.inf))
        slots.start(is_beam=self._settings.sampling is None)
        if draws is not None:
            slots.hypotheses.numbers.copy_(draws)
        self._count = count

    def run(self) -> list[list[Hypothesis]]:
        """Return the best translations of each sentence.

        Sync: Blocks the host, counted as "decode".
        """
        late = None
        while self._position < self._shape.longest and not self._is_done.all():
            read = self._step()
            if self._device.is_accelerator:
                late, read = read, late
            if read is not None:
                self._take(read)
                self._leave()
        if not self._is_done.all():
            self._take(self._reads[-1], all_are_done=True)
        return self._results()

    def _step(self) -> _Read:
        """Queue the steps of an interval, and the copies of what they found."""
        device = self._device
        interval = _GPU_INTERVAL if device.is_accelerator else _CPU_INTERVAL
        start, longest = self._position, self._shape.longest
        end = min(start + interval, longest)
        self._attend_to(end)
        slots = self._memory.slots(self._shape)
        for position in range(start, end):
            self._memory.step(self._shape, self._settings, position=position)
        self._position = end
        found = slots.hypotheses
        read = _Read(
            start=start,
            sentences=self._sentences,
            event=device.create_event(),
            steps=self._copied(found.steps[start:end]),
            ended_scores=self._copied(found.ended_scores),
            ended_at=self._copied(found.ended_at),
            is_done=self._copied(found.is_done),
        )
        device.record_event(read.event, device.current_stream())
        self._reads.append(read)
        return read

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = self._device.pinned_like(tensor)
        self._device.copy(copied, tensor)
        return copied

    def _attend_to(self, end: int) -> None:
        """Let steps attend to so many positions."""
        shape = self._shape
        if end > shape.room:
            room = rounded_up(min(shape.longest, 2 * shape.room), multiple=8)
            self._shape = shape = self._memory.widen(shape, room=room)
        if end > shape.positions:
            if self._device.is_accelerator:
                end = min(shape.room, rounded_up(ladder(end), multiple=8))
            self._shape = replace(shape, positions=end)

    def _take(self, read: _Read, *, all_are_done: bool = False) -> None:
        """Keep the translations of sentences that are done."""
        self._host_waits.wait_event(read.event, reason="decode")
        is_done = read.is_done.numpy() | all_are_done
        rows = np.flatnonzero(is_done & ~self._is_done[read.sentences])
        sentences = read.sentences[rows]
        self._is_done[sentences] = True
        self._scores[sentences] = read.ended_scores.numpy()[rows]
        self._ended_at[sentences] = read.ended_at.numpy()[rows]

    def _leave(self) -> None:
        """Go on without sentences that are done."""
        is_alive = ~self._is_done[self._sentences]
        num_alive = int(is_alive.sum())
        count = ladder(num_alive) if self._device.is_accelerator else num_alive
        if not 0 < count < len(is_alive):
            return
        others = count + np.flatnonzero(is_alive[count:])
        holes = np.flatnonzero(~is_alive[:count])[: len(others)]
        if len(others):
            places = torch.from_numpy(np.stack((holes, others)))
            moved = self._device.device_like(places)
            self._device.copy(moved, self._pinned(places))
            self._memory.slots(self._shape).move(moved[0], moved[1])
        sentences = self._sentences.copy()
        sentences[holes] = sentences[others]
        self._sentences = sentences[:count]
        self._shape = replace(self._shape, sentences=count)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = self._device.pinned_like(tensor)
        pinned.copy_(tensor)
        return pinned

    # --- hypotheses from steps ---

    def _results(self) -> list[list[Hypothesis]]:
        num_best = min(self._settings.n_best, self._shape.hypotheses)
        scores = self._scores[: self._count, :num_best]
        sentences, ranks = np.nonzero(scores > NEVER)
        ended_at, is_cut = np.divmod(self._ended_at[sentences, ranks], 2)
        lengths, hypotheses = np.divmod(ended_at, self._shape.hypotheses)
        ids = self._ids(sentences, lengths, hypotheses)
        results: list[list[Hypothesis]] = [[] for _ in range(self._count)]
        for at, (sentence, rank) in enumerate(zip(sentences, ranks, strict=True)):
            results[sentence].append(
                Hypothesis(
                    ids=ids[at, : lengths[at]].tolist(),
                    score=float(scores[sentence, rank]),
                    is_cut=bool(is_cut[at]),
                )
            )
        return results

    def _ids(
        self, sentences: np.ndarray, lengths: np.ndarray, hypotheses: np.ndarray
    ) -> np.ndarray:
        """Return the tokens of hypotheses, from the last one back, [hypotheses, T]."""
        ids = np.zeros((len(sentences), self._position), dtype=np.int64)
        for read in reversed(self._reads):
            row_of = np.zeros(len(self._is_done), dtype=np.int64)
            row_of[read.sentences] = np.arange(len(read.sentences))
            rows = row_of[sentences]
            for position, (tokens, parents) in reversed(
                list(enumerate(read.steps.numpy(), read.start))
            ):
                is_part = position < lengths
                ids[:, position] = tokens[rows, hypotheses]
                hypotheses = np.where(is_part, parents[rows, hypotheses], hypotheses)
        return ids
