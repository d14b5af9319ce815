"""What a batch of sentence pairs is: on its way to the device, and as the model takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from gapless.nmt.data.vocab import PAD


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Padded sentences as they travel to the device.

    Attributes:
        src: source ids with end, [batch, src_len], int64.
        tgt: target ids with begin and end, [batch, tgt_len + 1], int64.
        ntokens: target tokens to predict in this batch, padding excluded; a scalar tensor, since
            dividing by a Python number rounds differently on a GPU.
        norm: target tokens of the whole update that this batch belongs to, a scalar tensor.
        ends_update: whether the optimizer steps after this batch.
    """

    src: torch.Tensor
    tgt: torch.Tensor
    ntokens: torch.Tensor
    norm: torch.Tensor
    ends_update: bool


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Packed sentences as they travel to the device and into the model.

    A row is a sentence, a stretch of padding, or empty. Rows follow each other without a break. All
    numbers lie in one tensor, as each tensor of a batch takes the host its time to move.

    Attributes:
        numbers: sources, targets as read and as predicted, starts of both sides' rows, tokens of the batch and of its
            update, [S + 2 T + 2 rows + 4], int32.
        src_tokens: source tokens S, padding included.
        tgt_tokens: target tokens T, padding included.
        rows: of each side: sentences, padding and empty ones.
        longest: upper limit of the tokens in a row.
        ends_update: whether the optimizer steps after this batch.
    """

    numbers: torch.Tensor
    src_tokens: int
    tgt_tokens: int
    rows: int
    longest: int
    ends_update: bool

    @property
    def src(self) -> torch.Tensor:
        """Source ids with ends, [S], int32: embeddings sort them in half the passes of int64."""
        return self._parts()[0]

    @property
    def trg(self) -> torch.Tensor:
        """Target ids that the decoder reads, from the begin marks on, [T], int32."""
        return self._parts()[1]

    @property
    def trg_y(self) -> torch.Tensor:
        """Target ids that it predicts, up to the end marks, [T], int64."""
        return self._parts()[2].long()

    @property
    def src_starts(self) -> torch.Tensor:
        """First token of each row, and S, [rows + 1], int32."""
        return self._parts()[3]

    @property
    def tgt_starts(self) -> torch.Tensor:
        """First token of each row, and T, [rows + 1], int32."""
        return self._parts()[4]

    @property
    def ntokens(self) -> torch.Tensor:
        """Target tokens to predict in this batch, padding excluded, a scalar tensor, int32."""
        return self._parts()[5].squeeze(0)

    @property
    def norm(self) -> torch.Tensor:
        """Target tokens of the whole update that this batch belongs to, a scalar tensor, int32."""
        return self._parts()[6].squeeze(0)

    def _parts(self) -> tuple[torch.Tensor, ...]:
        starts = self.rows + 1
        sizes = [self.src_tokens, self.tgt_tokens, self.tgt_tokens, starts, starts, 1, 1]
        return torch.split(self.numbers, sizes)


AnyBatch: TypeAlias = TokenBatch | PackedBatch


@dataclass
class Batch:
    """A padded batch as the model takes it, with its masks.

    Attributes:
        src: source ids, [batch, src_len].
        trg: target ids that the decoder reads, from the begin mark on, [batch, tgt_len].
        trg_y: target ids that it predicts, up to the end mark, [batch, tgt_len].
        src_mask: True where the source is no padding, [batch, 1, src_len].
        trg_mask: True where a target position may look, [batch, tgt_len, tgt_len]; None: at
            itself and before. That is the same where padding stands at the end.
        ntokens: number of target tokens to predict, a scalar tensor.
    """

    src: torch.Tensor
    trg: torch.Tensor
    trg_y: torch.Tensor
    src_mask: torch.Tensor
    trg_mask: torch.Tensor | None
    ntokens: torch.Tensor

    @classmethod
    def from_tokens(cls, src: torch.Tensor, tgt: torch.Tensor, ntokens: torch.Tensor) -> Batch:
        """Make the batch of padded ids, on the device where they are.

        Args:
            src: source ids with end, [batch, src_len].
            tgt: target ids with begin and end, [batch, tgt_len + 1].
            ntokens: number of target tokens to predict, a scalar tensor.

        Sync: Does not block the host.
        """
        return cls(
            src=src,
            trg=tgt[:, :-1],
            trg_y=tgt[:, 1:],
            src_mask=(src != PAD).unsqueeze(1),
            trg_mask=None,
            ntokens=ntokens,
        )


def causal_mask(trg: torch.Tensor) -> torch.Tensor:
    """Return the full target mask: no padding, nothing after the position itself.

    Args:
        trg: target ids, [batch, tgt_len].

    Returns:
        Boolean mask, [batch, tgt_len, tgt_len], on the device of `trg`.
    """
    length = trg.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=trg.device).tril()
    return (trg != PAD).unsqueeze(1) & before
