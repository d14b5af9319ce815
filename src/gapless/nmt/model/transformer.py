"""The Transformer of Vaswani et al. 2017, with pre- or post-norm.

Shape suffixes: B batch, S source length, T target length, D model width, H heads, E width of a
head, V vocabulary. Padding stands at the end of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn import functional as F

from gapless.device.torch_private import let_vary
from gapless.nmt.data.vocab import PAD
from gapless.nmt.model.attention import Attention, Dense, Packed, PackedRows, Pattern


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.data.batch import PackedBatch


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a Transformer.

    Attributes:
        src_vocab: source vocabulary.
        tgt_vocab: target vocabulary.
        d_model: width.
        heads: attention heads; divides `d_model`.
        ffn: inner width of the feed-forward part.
        encoder_layers, decoder_layers: number of layers.
        dropout: on embeddings and on every sub-layer's output.
        attention_dropout: on attention weights.
        norm: layer norm before (`pre`) or after (`post`) each sub-layer.
        share: `all` shares source, target and output embeddings, `decoder` shares target and
            output, `none` shares nothing.
        activation: between the two layers of a feed-forward part.
        output_bias: whether the output layer has a bias.
    """

    src_vocab: int
    tgt_vocab: int
    d_model: int = 512
    heads: int = 8
    ffn: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    attention_dropout: float = 0.0
    norm: Literal["pre", "post"] = "pre"
    share: Literal["all", "decoder", "none"] = "decoder"
    activation: Literal["relu", "swish", "gelu"] = "relu"
    output_bias: bool = False


class Residual(nn.Module):
    """A sub-layer with dropout, residual connection and layer norm before or after."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout)
        self.is_pre = sizes.norm == "pre"

    def forward(
        self, x_BTD: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return x plus the output of the sub-layer."""
        out_BTD: torch.Tensor
        if self.is_pre:
            out_BTD = x_BTD + self.dropout(sublayer(self.norm(x_BTD)))
        else:
            out_BTD = self.norm(x_BTD + self.dropout(sublayer(x_BTD)))
        return out_BTD


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "swish": F.silu,
    "gelu": F.gelu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.inner = nn.Linear(sizes.d_model, sizes.ffn)
        self.outer = nn.Linear(sizes.ffn, sizes.d_model)
        self.activation = _ACTIVATIONS[sizes.activation]

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Apply to each position alone."""
        out: torch.Tensor = self.outer(self.activation(self.inner(x_BTD)))
        return out


def _attention(sizes: ModelSizes) -> Attention:
    return Attention(sizes.d_model, heads=sizes.heads, dropout=sizes.attention_dropout)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.attention = _attention(sizes)
        self.feed_forward = FeedForward(sizes)
        self.residuals = nn.ModuleList(Residual(sizes) for _ in range(2))

    def forward(self, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        x = self.residuals[0](x, lambda x: self.attention(x, x, pattern))
        out: torch.Tensor = self.residuals[1](x, self.feed_forward)
        return out


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, and feed-forward."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.self_attention = _attention(sizes)
        self.cross_attention = _attention(sizes)
        self.feed_forward = FeedForward(sizes)
        self.residuals = nn.ModuleList(Residual(sizes) for _ in range(3))

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, to_itself: Pattern, to_source: Pattern
    ) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        x = self.residuals[0](x, lambda x: self.self_attention(x, x, to_itself))
        x = self.residuals[1](x, lambda x: self.cross_attention(x, memory, to_source))
        out: torch.Tensor = self.residuals[2](x, self.feed_forward)
        return out


class Embedding(nn.Module):
    """Scaled token embeddings plus sinusoidal positions, with dropout.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; sine and cosine halves side by side.
    """

    positions: torch.Tensor

    def __init__(self, table: nn.Embedding, sizes: ModelSizes, *, max_positions: int) -> None:
        super().__init__()
        self.table = table
        self.scale = math.sqrt(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout)
        positions = sinusoids(max_positions, sizes.d_model)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, ids: torch.Tensor, *, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vectors of ids, [..., D].

        Args:
            ids: [..., T].
            positions: of the ids, counted from 0, broadcast to their shape; None: from 0 on.
        """
        if positions is None:
            at = self.positions[: ids.shape[-1]]
        else:
            at = F.embedding(positions, self.positions)
        out: torch.Tensor = self.dropout(self.table(ids) * self.scale + at)
        return out


class Transformer(nn.Module):
    """Encoder, decoder and output layer.

    Args:
        sizes: of everything.
        max_positions: longest sentence in tokens, marks included.

    Attributes:
        lengths_vary: whether layers are to be compiled for rows of any length at once.
    """

    def __init__(self, sizes: ModelSizes, *, max_positions: int = 1024) -> None:
        super().__init__()
        self.sizes = sizes
        self.max_positions = max_positions
        self.lengths_vary = False
        tgt_table = _embedding_table(sizes.tgt_vocab, sizes.d_model)
        src_table = (
            tgt_table if sizes.share == "all" else _embedding_table(sizes.src_vocab, sizes.d_model)
        )
        self.src_embedding = Embedding(src_table, sizes, max_positions=max_positions)
        self.tgt_embedding = Embedding(tgt_table, sizes, max_positions=max_positions)
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.decoder_layers))
        self.encoder_norm = _final_norm(sizes)
        self.decoder_norm = _final_norm(sizes)
        self.generator = nn.Linear(sizes.d_model, sizes.tgt_vocab, bias=sizes.output_bias)
        if sizes.output_bias:
            nn.init.zeros_(self.generator.bias)
        if sizes.share == "none":
            nn.init.normal_(self.generator.weight, std=sizes.d_model**-0.5)
        else:
            self.generator.weight = tgt_table.weight
        _initialise_linears(self.encoder, self.decoder)

    def forward(
        self,
        src: torch.Tensor,
        trg: torch.Tensor,
        src_mask: torch.Tensor,
        trg_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the decoder's output, before the generator, [B, T, D].

        Args:
            src: source ids, [B, S].
            trg: target ids from the begin mark on, [B, T].
            src_mask: True where the source is no padding, [B, 1, S].
            trg_mask: True where a target position may look, [B, T, T]; None for causal.

        Sync: Does not block the host.
        """
        return self.decode(trg, self.encode(src, src_mask), src_mask, trg_mask)

    def forward_packed(self, batch: PackedBatch) -> torch.Tensor:
        """Return the decoder's output, before the generator, [T, D].

        Sync: Does not block the host.
        """
        longest = batch.longest
        src = PackedRows.of(batch.src_starts, num_tokens=len(batch.src), longest=longest)
        tgt = PackedRows.of(batch.tgt_starts, num_tokens=len(batch.trg), longest=longest)
        memory = self._encode(
            self.src_embedding(batch.src, positions=self._within_table(src.positions)),
            Packed(src, src),
        )
        return self._decode(
            self.tgt_embedding(batch.trg, positions=self._within_table(tgt.positions)),
            memory,
            to_itself=Packed(tgt, tgt, is_causal=True),
            to_source=Packed(tgt, src),
        )

    def _within_table(self, positions: torch.Tensor) -> torch.Tensor:
        # A row of padding may be longer than any sentence.
        return positions.clamp(max=self.max_positions - 1)

    def encode(self, src: torch.Tensor, src_mask: torch.Tensor) -> torch.Tensor:
        """Return the encoder's output, [B, S, D]."""
        return self._encode(self.src_embedding(src), Dense(src_mask.unsqueeze(1)))

    def decode(
        self,
        trg: torch.Tensor,
        memory_BSD: torch.Tensor,
        src_mask: torch.Tensor,
        trg_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the decoder's output for whole sentences, [B, T, D]."""
        causal = Dense(is_causal=True)
        return self._decode(
            self.tgt_embedding(trg),
            memory_BSD,
            to_itself=causal if trg_mask is None else Dense(trg_mask.unsqueeze(1)),
            to_source=Dense(src_mask.unsqueeze(1)),
        )

    def _encode(self, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
        if self.lengths_vary:
            _let_lengths_vary(x, pattern)
        for layer in self.encoder:
            x = layer(x, pattern)
        out: torch.Tensor = self.encoder_norm(x)
        return out

    def _decode(
        self, x: torch.Tensor, memory: torch.Tensor, *, to_itself: Pattern, to_source: Pattern
    ) -> torch.Tensor:
        if self.lengths_vary:
            _let_lengths_vary(x, to_itself)
            _let_lengths_vary(memory, to_source)
        for layer in self.decoder:
            x = layer(x, memory, to_itself, to_source)
        out: torch.Tensor = self.decoder_norm(x)
        return out


def _let_lengths_vary(x: torch.Tensor, pattern: Pattern) -> None:
    """Let what is compiled for these padded rows take other lengths."""
    if isinstance(pattern, Dense):
        let_vary(x, 1)
        if pattern.mask is not None:
            let_vary(pattern.mask, -1)


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Return sinusoidal position vectors, [length, width], sines before cosines."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :width]


def _embedding_table(vocab: int, width: int) -> nn.Embedding:
    table = nn.Embedding(vocab, width, padding_idx=PAD)
    nn.init.normal_(table.weight, std=width**-0.5)
    with torch.no_grad():
        table.weight[PAD].zero_()
    return table


def _final_norm(sizes: ModelSizes) -> nn.Module:
    return nn.LayerNorm(sizes.d_model) if sizes.norm == "pre" else nn.Identity()


def _initialise_linears(*parts: nn.Module) -> None:
    """Draw weights as Glorot and Bengio 2010 (equation 16), biases zero.

    The three projections of an attention are drawn as one matrix of 3 D rows, as fairseq and
    torch's own attention do: bound sqrt(6 / (D + 3 D)).
    """
    for part in parts:
        for module in part.modules():
            if isinstance(module, Attention):
                bound = math.sqrt(6.0 / (4 * module.query.in_features))
                nn.init.uniform_(module.query.weight, -bound, bound)
                nn.init.uniform_(module.key_value.weight, -bound, bound)
                nn.init.xavier_uniform_(module.out.weight)
            elif isinstance(module, FeedForward):
                nn.init.xavier_uniform_(module.inner.weight)
                nn.init.xavier_uniform_(module.outer.weight)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
