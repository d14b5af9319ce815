"""Multi-head attention over padded rows or over packed sentences.

Shape suffixes: B batch, T query length, S key length, N query tokens and M key tokens of a packed
batch, R sentences of a packed batch, H heads, E width of a head, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from gapless.device.torch_private import efficient_attention


@dataclass(frozen=True)
class Dense:
    """Which positions attend to which, in rows of equal length.

    Attributes:
        mask: True where attention is allowed, broadcast to [B, H, T, S]; None: everywhere.
        is_causal: allow only the position itself and those before.
    """

    mask: torch.Tensor | None = None
    is_causal: bool = False


@dataclass(frozen=True)
class Packed:
    """Which positions attend to which in packed sentences: those of the same sentence.

    Attributes:
        query_starts: first query token of each sentence, and the number of tokens, [R + 1], int32.
        key_starts: the same of the keys.
        longest: upper limit of the tokens of a sentence.
        is_causal: allow only the position itself and those before.
    """

    query_starts: torch.Tensor
    key_starts: torch.Tensor
    longest: int
    is_causal: bool = False


Pattern: TypeAlias = Dense | Packed


class Attention(nn.Module):
    """Multi-head attention with one fused projection for keys and values.

    Args:
        d_model: width D.
        heads: H; divides `d_model`.
        dropout: on attention weights.
    """

    def __init__(self, d_model: int, *, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, pattern: Pattern = Dense()
    ) -> torch.Tensor:
        """Attend from each position of `x` to positions of `memory`.

        Args:
            x: where queries come from, [B, T, D], or [N, D] if packed.
            memory: where keys and values come from, [B, S, D], or [M, D] if packed.
            pattern: which positions attend to which.
        """
        keys, values = self.project(memory)
        return self.attend(x, keys, values, pattern)

    def project(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, [B, H, S, E] each, or [M, H, E] if packed."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def attend(
        self,
        x: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        pattern: Pattern = Dense(),
    ) -> torch.Tensor:
        """Attend to keys and values that were projected before."""
        queries = self._split(self.query(x))
        dropout = self.dropout if self.training else 0.0
        if isinstance(pattern, Packed):
            heads = _attend_packed(queries, keys, values, pattern, dropout)
        else:
            heads = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=pattern.mask,
                dropout_p=dropout,
                is_causal=pattern.is_causal,
            ).transpose(1, 2)
        out: torch.Tensor = self.out(heads.flatten(-2))
        return out

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = x.unflatten(-1, (self.heads, -1))
        return heads if x.dim() == 2 else heads.transpose(1, 2)


# Torch's memory-efficient attention, called as torch's own nested tensors call it. For sentences
# of about thirty tokens its tiles of 64 make it twice as fast as FlashAttention, whose tiles have
# 128 (measured on an H200). Unlike FlashAttention it has float32 and dropout. It is private, hence
# the fallback.
_KERNEL = efficient_attention
_ANYWHERE, _CAUSAL = 0, 1


def _attend_packed(
    queries_NHE: torch.Tensor,
    keys_MHE: torch.Tensor,
    values_MHE: torch.Tensor,
    pattern: Packed,
    dropout: float,
) -> torch.Tensor:
    """Return the weighted values for each query, [N, H, E]."""
    if (
        efficient_attention is None
        or dropout
        or not queries_NHE.is_cuda
        or queries_NHE.shape[-1] % 8
    ):
        return _attend_padded(queries_NHE, keys_MHE, values_MHE, pattern, dropout)
    out_1NHE: torch.Tensor = _KERNEL(
        queries_NHE.unsqueeze(0),
        keys_MHE.unsqueeze(0),
        values_MHE.unsqueeze(0),
        None,
        pattern.query_starts,
        pattern.key_starts,
        pattern.longest,
        pattern.longest,
        0.0,
        _CAUSAL if pattern.is_causal else _ANYWHERE,
        True,
    )[0]
    return out_1NHE.squeeze(0)


def _attend_padded(
    queries_NHE: torch.Tensor,
    keys_MHE: torch.Tensor,
    values_MHE: torch.Tensor,
    pattern: Packed,
    dropout: float,
) -> torch.Tensor:
    """Do the same without the kernel, with a padded row for each sentence, [N, H, E]."""
    longest = pattern.longest
    query_at, _ = _rows(pattern.query_starts, longest, num_tokens=len(queries_NHE))
    key_at, is_key = _rows(pattern.key_starts, longest, num_tokens=len(keys_MHE))
    # A row without keys may attend to anything: its result is not used, but NaN would spread.
    mask = (is_key | ~is_key.any(dim=1, keepdim=True))[:, None, None, :]
    if pattern.is_causal:
        mask = mask & torch.ones((longest, longest), dtype=torch.bool, device=mask.device).tril()
    heads_RHLE = F.scaled_dot_product_attention(
        queries_NHE[query_at].transpose(1, 2),
        keys_MHE[key_at].transpose(1, 2),
        values_MHE[key_at].transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
    )
    token = torch.arange(len(queries_NHE), device=queries_NHE.device)
    starts = pattern.query_starts.long()
    # All starts, not a slice of them: compiled layers cannot search a slice (torch 2.11).
    row = torch.searchsorted(starts, token, right=True) - 1
    return heads_RHLE.transpose(1, 2)[row, token - starts[row]]


def _rows(
    starts: torch.Tensor, longest: int, *, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token at each place of padded rows, [R, longest], and whether there is one.

    A place without a token gets some later token. If all such places got the same token, thousands
    of gradients would be added up in one address, one after the other.
    """
    at = starts[:-1, None].long() + torch.arange(longest, device=starts.device)
    return at.clamp(max=num_tokens - 1), at < starts[1:, None]
