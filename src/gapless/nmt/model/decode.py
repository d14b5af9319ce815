"""Batched beam search with cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.device.numerics import autocast
from gapless.nmt.data.vocab import BOS, EOS, PAD


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device
    from gapless.nmt.model.transformer import LayerCache, Transformer
    from gapless.pipeline.host_waits import HostWaits


_NEVER = -1e9

# Steps between two host waits that ask whether all sentences of a batch are finished.
_CHECK_INTERVAL = 8


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """How translations are searched.

    Attributes:
        beam: hypotheses kept; 1 is greedy search.
        length_penalty: exponent a in score / length ** a, the end mark counted.
        max_length: most tokens of a translation, the end mark not counted.
        early_stopping: a sentence is done as soon as `beam` hypotheses have ended, as in
            fairseq. Otherwise it is done when no hypothesis alive scores better than the worst of
            those.
        n_best: translations returned for each sentence, at most `beam`.
        batch_tokens: budget of a batch: sentences times beam times source length.
        batch_sentences: most sentences of a batch; None: as many as the budget allows.
    """

    beam: int = 5
    length_penalty: float = 1.0
    max_length: int = 200
    early_stopping: bool = False
    n_best: int = 1
    batch_tokens: int = 16_384
    batch_sentences: int | None = None


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One translation.

    Attributes:
        ids: token ids without marks.
        score: log probability / length ** a.
        is_cut: whether it ended at the longest length allowed, where the model would have gone on.
    """

    ids: list[int]
    score: float
    is_cut: bool = False


class Decoder:
    """Translate token ids with a model.

    Args:
        model: a trained model; put into evaluation mode while it decodes.
        device: where the model is.
        host_waits: the door for the waits of decoding, counted as "decode".
        precision: of the forward passes.
    """

    def __init__(
        self, model: Transformer, *, device: Device, host_waits: HostWaits, precision: str = "fp32"
    ) -> None:
        self._model = model
        self._device = device
        self._host_waits = host_waits
        self._precision = precision

    @torch.inference_mode()
    def translate(
        self,
        sources: Sequence[Sequence[int]],
        settings: DecodeSettings,
        *,
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
            on_done: called with the number of sentences finished after each batch.
            rank: whose batches are searched; the other sources have no translations.
            world: number of ranks.

        Sync: Blocks the host, counted as "decode".
        """
        was_training = self._model.training
        self._model.eval()
        results: list[list[Hypothesis]] = [[] for _ in sources]
        try:
            for numbers in _by_length(sources, settings)[rank::world]:
                with autocast(self._device, self._precision):
                    found = self._search([sources[number] for number in numbers], settings)
                for number, hypotheses in zip(numbers, found, strict=True):
                    results[number] = hypotheses
                if on_done is not None:
                    on_done(len(numbers))
        finally:
            self._model.train(was_training)
        return results

    def _search(
        self, sources: list[Sequence[int]], settings: DecodeSettings
    ) -> list[list[Hypothesis]]:
        with self._host_waits.blocking("decode"):
            src = _pad_sources(sources).to(self._device.torch_device)
        beams = _Beams(len(sources), settings, device=self._device.torch_device)
        src_mask = (src != PAD).unsqueeze(1)
        memory = self._model.encode(src, src_mask).repeat_interleave(settings.beam, dim=0)
        src_mask = src_mask.repeat_interleave(settings.beam, dim=0)
        cache = self._model.start_cache(memory)
        limit = min(settings.max_length, self._model.max_positions - 1)
        for position in range(limit + 1):
            logits = self._model.decode_step(
                beams.last_ids, cache, position=position, src_mask=src_mask
            )
            _reorder(cache, beams.advance(logits, must_end=position == limit))
            if position % _CHECK_INTERVAL == _CHECK_INTERVAL - 1 and self._all_done(beams):
                break
        with self._host_waits.blocking("decode"):
            return beams.results()

    def _all_done(self, beams: _Beams) -> bool:
        with self._host_waits.blocking("decode"):
            return beams.are_done()


class _Beams:
    """The hypotheses of a batch of N sentences with K beams each, all on the device.

    Each step looks at the 2 K best continuations. Those among the K best that end compete for K
    places by score. A sentence is done when all places are filled and the best hypothesis still
    alive scores no better than the last of them. Stopping as soon as K have ended would let a
    confident model end on continuations that only fill the beam.

    Source: the stopping rules are those of Hugging Face transformers (early_stopping=False) and
    of fairseq (early stopping).
    """

    def __init__(self, count: int, settings: DecodeSettings, *, device: torch.device) -> None:
        self._count = count
        self._beam = settings.beam
        self._penalty = settings.length_penalty
        self._stops_early = settings.early_stopping
        self._n_best = min(settings.n_best, settings.beam)
        shape = (count, settings.beam)
        self._ids = torch.full((*shape, 1), BOS, dtype=torch.long, device=device)
        self._log_probs = torch.full(shape, _NEVER, device=device)
        self._log_probs[:, 0] = 0.0
        self._ended_ids = torch.full((*shape, 1), PAD, dtype=torch.long, device=device)
        self._ended_scores = torch.full(shape, _NEVER, device=device)
        self._none = torch.zeros(shape, dtype=torch.bool, device=device)
        self._ended_are_cut = self._none
        self._num_ended = torch.zeros(count, dtype=torch.long, device=device)
        self._is_done = torch.zeros(count, dtype=torch.bool, device=device)

    @property
    def last_ids(self) -> torch.Tensor:
        """Latest id of every hypothesis, [N * K]."""
        return self._ids[:, :, -1].flatten()

    def are_done(self) -> bool:
        """Return whether every sentence is done; reads the device."""
        return bool(self._is_done.all())

    def advance(self, logits: torch.Tensor, *, must_end: bool) -> torch.Tensor:
        """Take the next token of every hypothesis.

        Args:
            logits: [N * K, V].
            must_end: whether every hypothesis ends now, because the length limit is reached.

        Returns:
            The row that each new hypothesis continues, [N * K].
        """
        log_probs = self._next_log_probs(logits)
        is_cut = self._none
        if must_end:
            is_cut = log_probs.argmax(dim=2) != EOS
            log_probs = self._only_ends(log_probs)
        vocab = log_probs.shape[-1]
        totals = (self._log_probs.unsqueeze(2) + log_probs).flatten(1)
        best, picks = totals.topk(min(2 * self._beam, totals.shape[1]), dim=1)
        rows, tokens = picks // vocab, picks % vocab
        self._keep_ended(best, rows, tokens, is_cut=is_cut)
        return self._keep_alive(best, rows, tokens)

    def results(self) -> list[list[Hypothesis]]:
        """Return the best ended hypotheses of each sentence; reads the device."""
        order = self._ended_scores.argsort(dim=1, descending=True)[:, : self._n_best]
        index = order.unsqueeze(2).expand(-1, -1, self._ended_ids.shape[2])
        ids = self._ended_ids.gather(1, index).tolist()
        scores = self._ended_scores.gather(1, order).tolist()
        are_cut = self._ended_are_cut.gather(1, order).tolist()
        return [
            [
                Hypothesis(ids=[i for i in row if i > EOS or i == 1], score=score, is_cut=is_cut)
                for row, score, is_cut in zip(*sentence, strict=True)
                if score > _NEVER
            ]
            for sentence in zip(ids, scores, are_cut, strict=True)
        ]

    def _next_log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        log_probs = logits.float().log_softmax(dim=-1)
        log_probs[:, PAD] = _NEVER
        log_probs[:, BOS] = _NEVER
        return log_probs.view(self._count, self._beam, -1)

    def _only_ends(self, log_probs: torch.Tensor) -> torch.Tensor:
        ends = torch.full_like(log_probs, _NEVER)
        ends[:, :, EOS] = log_probs[:, :, EOS]
        return ends

    def _keep_ended(
        self,
        best: torch.Tensor,
        rows: torch.Tensor,
        tokens: torch.Tensor,
        *,
        is_cut: torch.Tensor,
    ) -> None:
        length = self._ids.shape[2]
        ends = (tokens == EOS)[:, : self._beam] & (best[:, : self._beam] > _NEVER / 2)
        ends &= ~self._is_done.unsqueeze(1)
        self._num_ended += ends.sum(dim=1)
        scores = (best[:, : self._beam] / length**self._penalty).masked_fill(~ends, _NEVER)
        ids = self._continued(rows[:, : self._beam], tokens[:, : self._beam])
        kept = torch.nn.functional.pad(self._ended_ids, (0, ids.shape[2] - length), value=PAD)
        all_scores = torch.cat((self._ended_scores, scores), dim=1)
        self._ended_scores, picks = all_scores.topk(self._beam, dim=1)
        new_are_cut = is_cut.gather(1, rows[:, : self._beam])
        are_cut = torch.cat((self._ended_are_cut, new_are_cut), dim=1)
        self._ended_are_cut = are_cut.gather(1, picks)
        index = picks.unsqueeze(2).expand(-1, -1, ids.shape[2])
        self._ended_ids = torch.cat((kept, ids), dim=1).gather(1, index)

    def _keep_alive(
        self, best: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        alive = best.masked_fill(tokens == EOS, _NEVER)
        self._log_probs, picks = alive.topk(self._beam, dim=1)
        rows, tokens = rows.gather(1, picks), tokens.gather(1, picks)
        self._is_done |= self._has_won()
        self._ids = self._continued(rows, tokens)
        first_rows = torch.arange(self._count, device=rows.device).unsqueeze(1) * self._beam
        return (rows + first_rows).flatten()

    def _has_won(self) -> torch.Tensor:
        """Return which sentences need no further step, [N]."""
        if self._stops_early:
            return self._num_ended >= self._beam
        best_alive = self._log_probs[:, 0] / self._ids.shape[2] ** self._penalty
        has_won: torch.Tensor = self._ended_scores[:, -1] >= best_alive
        return has_won

    def _continued(self, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        index = rows.unsqueeze(2).expand(-1, -1, self._ids.shape[2])
        return torch.cat((self._ids.gather(1, index), tokens.unsqueeze(2)), dim=2)


def _reorder(cache: list[LayerCache], rows: torch.Tensor) -> None:
    # Rows stay within their sentence, so keys and values of the source need no reordering.
    for layer in cache:
        assert layer.self_keys is not None
        assert layer.self_values is not None
        layer.self_keys = layer.self_keys.index_select(0, rows)
        layer.self_values = layer.self_values.index_select(0, rows)


def _by_length(sources: Sequence[Sequence[int]], settings: DecodeSettings) -> list[list[int]]:
    """Return sentence numbers in batches of similar length, longest first."""
    order = np.argsort([-len(source) for source in sources], kind="stable").tolist()
    batches: list[list[int]] = []
    for number in order:
        longest = len(sources[batches[-1][0]]) + 1 if batches else 0
        count = len(batches[-1]) + 1 if batches else 0
        has_room = settings.batch_sentences is None or count <= settings.batch_sentences
        if batches and has_room and count * longest * settings.beam <= settings.batch_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _pad_sources(sources: list[Sequence[int]]) -> torch.Tensor:
    rows = [torch.tensor([*source, EOS]) for source in sources]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
