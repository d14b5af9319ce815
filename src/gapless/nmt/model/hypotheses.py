"""Which hypotheses go on and which end, in a beam search or sampled, all on the device.

Shape suffixes: N sentences, K hypotheses of each, R = N * K rows, V vocabulary, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.nmt.data.vocab import BOS, EOS, PAD


if TYPE_CHECKING:
    from gapless.nmt.model.decode_settings import DecodeSettings, Sampling


NEVER = -1e9

# The best of so many scores are looked for among the best of each group of 64.
_GROUP = 64
_MANY = 64 * _GROUP


@dataclass(frozen=True, kw_only=True)
class Hypotheses:
    """The hypotheses of N sentences, K each.

    Attributes:
        ids: latest token, [N, K].
        totals: log probability so far, [N, K].
        ended_scores: of the best hypotheses that have ended, best first, [N, K].
        ended_at: where those ended: (position * K + the hypothesis that was continued) * 2, and 1
            more if the length limit ended it, [N, K].
        num_ended: [N].
        is_done: whether a sentence needs no further step, [N].
        steps: the token of each hypothesis at each position, and the hypothesis that it continues,
            [T, 2, N, K].
        log_probs: memory for them, [R, V].
        numbers: that samples are drawn by, 0 to 1, [N, K, T]; empty for a beam search.
    """

    ids: torch.Tensor
    totals: torch.Tensor
    ended_scores: torch.Tensor
    ended_at: torch.Tensor
    num_ended: torch.Tensor
    is_done: torch.Tensor
    steps: torch.Tensor
    log_probs: torch.Tensor
    numbers: torch.Tensor

    def start(self, *, is_beam: bool) -> None:
        """Begin: one hypothesis of a beam, or all samples, with the begin mark."""
        self.ids.fill_(BOS)
        self.totals.zero_()
        if is_beam:
            self.totals[:, 1:] = NEVER
        self.ended_scores.fill_(NEVER)
        self.ended_at.zero_()
        self.num_ended.zero_()
        self.is_done.zero_()

    def advance(
        self,
        logits_RV: torch.Tensor,
        position: torch.Tensor,
        settings: DecodeSettings,
        *,
        must_end: bool,
    ) -> torch.Tensor:
        """Take the next token of every hypothesis.

        Args:
            logits_RV: of the next token, of the first hypotheses of each sentence if others are not
                alive; those of marks that no translation has are written over.
            position: of the latest tokens, counted from 0, [1].
            settings: of the search.
            must_end: whether every hypothesis ends now, because the length limit is reached.

        Returns:
            The hypothesis that each new one continues, [N, K].

        Sync: Does not block the host.
        """
        log_probs = self.log_probs[: len(logits_RV)]
        torch.log_softmax(logits_RV, -1, dtype=torch.float32, out=log_probs)
        for scores in (log_probs, logits_RV):
            scores[:, PAD] = NEVER
            scores[:, BOS] = NEVER
        if settings.sampling is None:
            return self._beam(log_probs, logits_RV, position, settings, must_end=must_end)
        return self._sample(log_probs, position, settings, settings.sampling, must_end=must_end)

    # --- beam search ---

    def _beam(
        self,
        scores: torch.Tensor,
        logits: torch.Tensor,
        position: torch.Tensor,
        settings: DecodeSettings,
        *,
        must_end: bool,
    ) -> torch.Tensor:
        """Look at the 2 K best continuations of each sentence.

        Those among the K best that end compete for K places by score. A sentence is done when all
        places are filled and the best hypothesis still alive scores no better than the last of
        them. Stopping as soon as K have ended would let a confident model end on continuations
        that only fill the beam.

        Source: the stopping rules are those of Hugging Face transformers (early_stopping=False)
        and of fairseq (early stopping).
        """
        beam = self.ids.shape[1]
        is_cut: torch.Tensor | None = None
        columns: torch.Tensor | None = None
        num_alive = len(scores) // len(self.ids)
        if must_end:
            is_cut = (scores.argmax(dim=1) != EOS).view(-1, beam)
            scores, columns = scores[:, EOS : EOS + 1], torch.full_like(self.ids, EOS)
        elif scores.shape[1] >= _MANY:
            scores, columns = best_of_rows(scores, 2 * beam, like=logits)
        count = scores.shape[1]
        sums = self.totals[:, :num_alive, None] + scores.view(-1, num_alive, count)
        best, picks = sums.flatten(1).topk(min(2 * beam, num_alive * count), dim=1)
        parents = picks // count
        if columns is None:
            tokens = picks % count
        else:
            tokens = columns.view(-1, num_alive * count).gather(1, picks)
        is_end = tokens == EOS
        power = (position + 1).float() ** settings.length_penalty
        self._keep_ended(
            best[:, :beam],
            parents[:, :beam],
            is_end[:, :beam] & (best[:, :beam] > NEVER / 2),
            is_cut=is_cut,
            position=position,
            power=power,
        )
        alive, picks = best.masked_fill(is_end, NEVER).topk(beam, dim=1)
        parents = parents.gather(1, picks)
        self.totals.copy_(alive)
        if settings.early_stopping:
            has_won = self.num_ended >= beam
        else:
            has_won = self.ended_scores[:, -1] >= alive[:, 0] / power
        self.is_done.logical_or_(has_won)
        self._continue(tokens.gather(1, picks), parents, position)
        return parents

    def _keep_ended(
        self,
        totals: torch.Tensor,
        parents: torch.Tensor,
        ends: torch.Tensor,
        *,
        is_cut: torch.Tensor | None,
        position: torch.Tensor,
        power: torch.Tensor,
    ) -> None:
        ends = ends & ~self.is_done.unsqueeze(1)
        self.num_ended.add_(ends.sum(dim=1))
        beam = self.ids.shape[1]
        ended_at = (position * beam + parents) * 2
        if is_cut is not None:
            ended_at = ended_at + is_cut.gather(1, parents)
        scores = torch.cat((self.ended_scores, (totals / power).masked_fill(~ends, NEVER)), dim=1)
        scores, picks = scores.topk(beam, dim=1)
        self.ended_scores.copy_(scores)
        self.ended_at.copy_(torch.cat((self.ended_at, ended_at), dim=1).gather(1, picks))

    # --- sampling ---

    def _sample(
        self,
        log_probs: torch.Tensor,
        position: torch.Tensor,
        settings: DecodeSettings,
        sampling: Sampling,
        *,
        must_end: bool,
    ) -> torch.Tensor:
        """Draw the next token of each hypothesis, by a number that only seed and sentence decide."""
        count = self.ids.shape[1]
        numbers = self.numbers.index_select(2, position).view(-1, 1)
        tokens = _draw(log_probs, numbers, sampling)
        is_cut = (log_probs.argmax(dim=1, keepdim=True) != EOS).view(-1, count)
        if must_end:
            tokens = torch.full_like(tokens, EOS)
        totals = self.totals + log_probs.gather(1, tokens).view(-1, count)
        tokens = tokens.view(-1, count)
        is_alive = self.totals > NEVER / 2
        own = torch.arange(count, device=tokens.device).expand_as(tokens)
        ends = (tokens == EOS) & is_alive
        self._keep_ended(
            totals,
            own,
            ends,
            is_cut=is_cut if must_end else None,
            position=position,
            power=(position + 1).float() ** settings.length_penalty,
        )
        self.totals.copy_(totals.masked_fill(ends | ~is_alive, 2 * NEVER))
        self.is_done.copy_(self.num_ended >= count)
        self._continue(tokens, own, position)
        return own

    def _continue(
        self, tokens: torch.Tensor, parents: torch.Tensor, position: torch.Tensor
    ) -> None:
        self.ids.copy_(tokens)
        self.steps.index_copy_(
            0, position, torch.stack((tokens, parents)).to(self.steps.dtype).unsqueeze(0)
        )


def best_of_rows(
    scores: torch.Tensor, count: int, *, like: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best scores of each row, best first, and their columns, [R, C].

    Of many scores only the groups with the highest maxima are looked at: no other holds one of the
    best.

    Args:
        scores: [R, V].
        count: C.
        like: numbers in the order of each row's scores, which may have fewer bytes.
    """
    width = scores.shape[1]
    count = min(count, width)
    if width < max(_MANY, 2 * count * _GROUP):
        found: tuple[torch.Tensor, torch.Tensor] = scores.topk(count, dim=1)
        return found
    whole = width // _GROUP * _GROUP
    groups = (scores if like is None else like)[:, :whole].unflatten(1, (-1, _GROUP))
    numbers = groups.amax(dim=2).topk(count, dim=1).indices.unsqueeze(2)
    columns = numbers * _GROUP + torch.arange(_GROUP, device=scores.device)
    rest = torch.arange(whole, width, device=scores.device).expand(len(scores), -1)
    columns = torch.cat((columns.flatten(1), rest), dim=1)
    values, picks = scores.gather(1, columns).topk(count, dim=1)
    return values, columns.gather(1, picks)


def _draw(
    log_probs_RV: torch.Tensor, numbers_R1: torch.Tensor, sampling: Sampling
) -> torch.Tensor:
    """Return a token for each row, [R, 1], by the inverse of the distribution function."""
    columns: torch.Tensor | None = None
    scores = log_probs_RV / sampling.temperature
    if sampling.top_k is not None:
        scores, columns = best_of_rows(scores, sampling.top_k)
    elif sampling.top_p < 1.0:
        scores, columns = scores.sort(dim=1, descending=True)
    sums = scores.softmax(dim=1).cumsum(dim=1)
    most = sums[:, -1:]
    if sampling.top_p < 1.0:
        # The tokens before whose sum top_p is not reached yet: the first one is always among them.
        kept = (sums < sampling.top_p * most).sum(dim=1, keepdim=True)
        most = sums.gather(1, kept.clamp(max=sums.shape[1] - 1))
    picks = torch.searchsorted(sums, numbers_R1 * most, right=True)
    picks = picks.clamp(max=sums.shape[1] - 1)
    return picks if columns is None else columns.gather(1, picks)
