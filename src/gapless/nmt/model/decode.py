"""Translations of token ids: greedy, by beam search, or sampled; with cached keys and values.

What is promised: a sentence gets the hypotheses of a plain search, which decodes it alone and
computes all positions anew each step. Scores are rounded by the shape of the batch (in float32 the
last digits), so where two hypotheses score the same to those digits, either may win.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.device.numerics import autocast, matmul_dtype
from gapless.nmt.data.vocab import EOS, PAD
from gapless.nmt.model.incremental import Incremental
from gapless.nmt.model.search import Hypothesis, Search
from gapless.nmt.model.slots import Shape, SlotMemory, ladder, rounded_up


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.device.base import Device
    from gapless.nmt.model.decode_settings import DecodeSettings
    from gapless.nmt.model.transformer import Transformer
    from gapless.pipeline.host_waits import HostWaits


# Rows of a batch, one for each hypothesis, and tokens of its sources as `batch_tokens` counts them.
# More make a step no more efficient on two CPU cores. On a GPU more sentences then share the steps
# of the longest: an H200 searched 1.21 and 1.31 times as fast with 8,192 and 16,384 as with 4,096.
_LEAST_ROWS, _CPU_ROWS, _GPU_ROWS = 256, 1_024, 16_384
_TOKENS_OF_ROW = 32

# What more rows than the fewest may take, by estimate: on a CPU to stay near the caches, and as a
# share of a GPU's memory.
_CPU_BYTES, _GPU_SHARE = 256 * 2**20, 1 / 8


class Decoder:
    """Translate token ids with a model.

    Sentences of similar length are searched together, as `Search` does.

    Args:
        model: a trained model; put into evaluation mode while it decodes.
        device: where the model is.
        host_waits: the door for the waits of decoding, counted as "decode".
        precision: of the forward passes.
        others: of an ensemble, whose probabilities are averaged with the model's.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        device: Device,
        host_waits: HostWaits,
        precision: str = "fp32",
        others: Sequence[Transformer] = (),
    ) -> None:
        self._models = (model, *others)
        self._device = device
        self._host_waits = host_waits
        self._precision = precision
        self._steps = Incremental(*self._models, dtype=matmul_dtype(precision))
        self._memory = SlotMemory(self._steps, device)

    @torch.inference_mode()
    def translate(
        self,
        sources: Sequence[Sequence[int]],
        settings: DecodeSettings,
        *,
        numbers: Sequence[int] | None = None,
        on_done: Callable[[int], None] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> list[list[Hypothesis]]:
        """Return the best translations of each source, in the order of the sources.

        Of several ranks each searches whole batches, the same as one alone would make, since the
        sums of a sentence are rounded by the size of its batch.

        Args:
            sources: token ids without marks.
            settings: of the search.
            numbers: of the sources, which decide with the seed what is drawn; None: from 0 on.
            on_done: called with the number of sentences finished after each batch.
            rank: whose batches are searched; the other sources have no translations.
            world: number of ranks.

        Sync: Blocks the host, counted as "decode".
        """
        were_training = [model.training for model in self._models]
        for model in self._models:
            model.eval()
        results: list[list[Hypothesis]] = [[] for _ in sources]
        try:
            with self._own_stream():
                if self._steps.refresh():
                    self._memory.forget_graphs()
                for batch in self._batches(sources, settings)[rank::world]:
                    drawn_by = batch if numbers is None else [numbers[at] for at in batch]
                    found = self._search(drawn_by, [sources[at] for at in batch], settings)
                    for at, hypotheses in zip(batch, found, strict=True):
                        results[at] = hypotheses
                    if on_done is not None:
                        on_done(len(batch))
        finally:
            for model, was_training in zip(self._models, were_training, strict=True):
                model.train(was_training)
        return results

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Queue the work of the body on one stream; the default stream cannot be captured."""
        device = self._device
        before, stream = device.current_stream(), device.shared_stream("gapless.decode")
        device.wait_stream(stream, before)
        try:
            with device.use_stream(stream):
                yield
        finally:
            device.wait_stream(before, stream)

    def _search(
        self, numbers: Sequence[int], sources: list[Sequence[int]], settings: DecodeSettings
    ) -> list[list[Hypothesis]]:
        most = min(model.max_positions for model in self._models)
        longest = min(settings.max_length, most - 1) + 1
        shape = self._shape(sources, settings, longest=longest)
        draws = None
        if settings.sampling is not None:
            draws = _numbers(numbers, settings.sampling.seed, shape)
        with self._host_waits.blocking("decode"):
            src = _pad_sources(sources, shape).to(self._device.torch_device)
            draws = None if draws is None else draws.to(self._device.torch_device)
        is_source = (src != PAD).unsqueeze(1)
        with autocast(self._device, self._precision):
            memories = [model.encode(src, is_source) for model in self._models]
        search = Search(
            self._steps,
            self._memory,
            shape,
            settings,
            device=self._device,
            host_waits=self._host_waits,
        )
        search.start(memories, is_source, count=len(sources), draws=draws)
        return search.run()

    def _shape(
        self, sources: list[Sequence[int]], settings: DecodeSettings, *, longest: int
    ) -> Shape:
        length = len(sources[0]) + 1
        count = len(sources)
        if self._device.is_accelerator:
            # Few shapes, so that they come again and are replayed.
            length, count = rounded_up(length, multiple=8), ladder(count)
        room = rounded_up(min(longest, length + length // 2 + 8), multiple=8)
        return Shape(
            sentences=count,
            hypotheses=settings.hypotheses,
            source=length,
            positions=0,
            room=room,
            longest=longest,
            drawn=0 if settings.sampling is None else longest,
        )

    def _batches(
        self, sources: Sequence[Sequence[int]], settings: DecodeSettings
    ) -> list[list[int]]:
        """Return sentence numbers in batches of similar length, longest first."""
        order = np.argsort([-len(source) for source in sources], kind="stable").tolist()
        batches: list[list[int]] = []
        room = 0
        for number in order:
            if not batches or len(batches[-1]) >= room:
                room = self._most_sentences(len(sources[number]) + 1, settings)
                batches.append([])
            batches[-1].append(number)
        return batches

    def _most_sentences(self, length: int, settings: DecodeSettings) -> int:
        """Return of how many sentences a batch consists whose longest source has so many tokens."""
        rows = self._most_rows()
        tokens = rows * _TOKENS_OF_ROW
        if settings.batch_tokens is not None:
            rows = tokens = settings.batch_tokens
        most = min(rows, tokens // length) // settings.hypotheses
        if self._device.is_accelerator and most > 1:
            most = ladder(most, below=True)
        if settings.batch_sentences is not None:
            most = min(most, settings.batch_sentences)
        return max(1, most)

    def _most_rows(self) -> int:
        total = self._device.total_memory_bytes()
        most, room = (_CPU_ROWS, _CPU_BYTES) if total is None else (_GPU_ROWS, total * _GPU_SHARE)
        return max(_LEAST_ROWS, min(most, int(room) // self._steps.row_bytes))


def _pad_sources(sources: list[Sequence[int]], shape: Shape) -> torch.Tensor:
    """Return the ids of all sources, and of empty ones up to the batch's size."""
    ids = torch.full((shape.sentences, shape.source), PAD, dtype=torch.long)
    for row, source in zip(ids, sources, strict=False):
        row[: len(source)] = torch.tensor(source)
        row[len(source)] = EOS
    ids[len(sources) :, 0] = EOS
    return ids


def _numbers(numbers: Sequence[int], seed: int, shape: Shape) -> torch.Tensor:
    """Return what the tokens of each sentence are drawn by, whatever its batch, [N, K, T]."""
    drawn = np.zeros((shape.sentences, shape.hypotheses, shape.drawn), dtype=np.float32)
    for row, number in zip(drawn, numbers, strict=False):
        source = np.random.Generator(np.random.Philox(key=[seed, number]))
        # Below the largest float32 below 1, so that a product with a sum stays below the sum.
        row[:] = source.random(row.shape, dtype=np.float32) * np.float32(1 - 2**-20)
    return torch.from_numpy(drawn)
