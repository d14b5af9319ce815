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

    A row is a sentence, a stretch of padding, or empty. Rows follow each other without a break.

    Attributes:
        src: source ids with ends, [S], int32: embeddings sort them in half the passes of int64.
        src_starts: first token of each row, and S, [rows + 1], int32.
        trg: target ids that the decoder reads, from the begin marks on, [T], int32.
        trg_y: target ids that it predicts, up to the end marks, [T], int64.
        tgt_starts: first token of each row, and T, [rows + 1], int32.
        ntokens: target tokens to predict in this batch, padding excluded, a scalar tensor.
        norm: target tokens of the whole update that this batch belongs to, a scalar tensor.
        longest: upper limit of the tokens in a row.
        ends_update: whether the optimizer steps after this batch.
    """

    src: torch.Tensor
    src_starts: torch.Tensor
    trg: torch.Tensor
    trg_y: torch.Tensor
    tgt_starts: torch.Tensor
    ntokens: torch.Tensor
    norm: torch.Tensor
    longest: int
    ends_update: bool


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
