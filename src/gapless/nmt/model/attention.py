"""Multi-head attention over padded rows or over packed sentences.

Shape suffixes: B batch, T query length, S key length, N query tokens and M key tokens of a packed
batch, R rows of a packed batch, H heads, E width of a head, D model width. M2HE: keys, then values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from gapless.device.kernels import HAS_TRITON, HEAD_WIDTHS


if HAS_TRITON:
    from gapless.device.kernels import span_attention


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
class PackedRows:
    """Where the rows of packed tokens are; they follow each other without a break.

    Attributes:
        starts: first token of each row, and the number of tokens, [R + 1], int32.
        of_token: row of each token, [number of tokens], int32.
        positions: of each token within its row, [number of tokens], int32.
        longest: upper limit of the tokens in a row.
    """

    starts: torch.Tensor
    of_token: torch.Tensor
    positions: torch.Tensor
    longest: int

    @classmethod
    def of(cls, starts: torch.Tensor, *, num_tokens: int, longest: int) -> PackedRows:
        """Find the row of each token and its place there, on the device.

        Sync: Does not block the host.
        """
        token = torch.arange(num_tokens, device=starts.device, dtype=torch.int32)
        row = torch.searchsorted(starts, token, right=True, out_int32=True) - 1
        return cls(starts, row, token - starts.index_select(0, row), longest)


@dataclass(frozen=True)
class Packed:
    """Which positions attend to which in packed rows: those of the same row.

    Attributes:
        queries: rows of the tokens that attend.
        keys: as many rows of the tokens that they attend to.
        is_causal: allow only the position itself and those before; queries and keys then have the
            same rows.
    """

    queries: PackedRows
    keys: PackedRows
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
        queries, keys_values = self.query(x), self.key_value(memory)
        dropout = self.dropout if self.training else 0.0
        if isinstance(pattern, Packed):
            heads = _attend_packed(
                queries.unflatten(-1, (self.heads, -1)),
                keys_values.unflatten(-1, (2, self.heads, -1)),
                pattern,
                dropout,
            )
        else:
            keys, values = keys_values.chunk(2, dim=-1)
            heads = F.scaled_dot_product_attention(
                self._split(queries),
                self._split(keys),
                self._split(values),
                attn_mask=pattern.mask,
                dropout_p=dropout,
                is_causal=pattern.is_causal,
            ).transpose(1, 2)
        out: torch.Tensor = self.out(heads.flatten(-2))
        return out

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(1, 2)


def _attend_packed(
    queries_NHE: torch.Tensor, keys_values_M2HE: torch.Tensor, pattern: Packed, dropout: float
) -> torch.Tensor:
    """Return the weighted values for each query, [N, H, E]."""
    if not _is_for_kernel(queries_NHE, dropout):
        return _attend_padded(queries_NHE, keys_values_M2HE, pattern, dropout)
    queries, keys = pattern.queries, pattern.keys
    heads_NHE: torch.Tensor = span_attention.attend(
        queries_NHE,
        keys_values_M2HE,
        queries.of_token,
        queries.starts,
        keys.of_token,
        keys.starts,
        pattern.is_causal,
    )[0]
    return heads_NHE


# What the kernels are made for and tested with.
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _is_for_kernel(queries_NHE: torch.Tensor, dropout: float) -> bool:
    return (
        HAS_TRITON
        and queries_NHE.is_cuda
        and queries_NHE.dtype in _DTYPES
        and queries_NHE.shape[-1] in HEAD_WIDTHS
        and not dropout
    )


def _attend_padded(
    queries_NHE: torch.Tensor, keys_values_M2HE: torch.Tensor, pattern: Packed, dropout: float
) -> torch.Tensor:
    """Do the same without the kernel, with a padded row for each sentence, [N, H, E]."""
    queries, keys = pattern.queries, pattern.keys
    query_at, _ = _places(queries)
    key_at, is_key = _places(keys)
    # A row without keys may attend to anything: its result is not used, but NaN would spread.
    mask = (is_key | ~is_key.any(dim=1, keepdim=True))[:, None, None, :]
    if pattern.is_causal:
        square = (queries.longest, keys.longest)
        mask = mask & torch.ones(square, dtype=torch.bool, device=mask.device).tril()
    keys_MHE, values_MHE = keys_values_M2HE.unbind(1)
    heads_RHLE = F.scaled_dot_product_attention(
        queries_NHE[query_at].transpose(1, 2),
        keys_MHE[key_at].transpose(1, 2),
        values_MHE[key_at].transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
    )
    return heads_RHLE.transpose(1, 2)[queries.of_token, queries.positions]


def _places(rows: PackedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token at each place of padded rows, [R, longest], and whether there is one.

    A place without a token gets some later token. If all such places got the same token, thousands
    of gradients would be added up in one address, one after the other.
    """
    at = rows.starts[:-1, None].long() + torch.arange(rows.longest, device=rows.starts.device)
    return at.clamp(max=len(rows.of_token) - 1), at < rows.starts[1:, None]
