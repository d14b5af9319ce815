"""The decoder one position at a time, with the keys and values of the positions before.

Shape suffixes: N sentences, K hypotheses of each, R = N * K rows, L layers, P places, S source
length, H heads, E width of a head, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional as F

from gapless.device.torch_private import onednn_linear


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from gapless.nmt.model.attention import Attention
    from gapless.nmt.model.transformer import DecoderLayer, FeedForward, Residual, Transformer


# For an estimate: bytes of a score, in all its forms, and positions of a hypothesis.
_SCORE_BYTES, _POSITIONS = 10, 64


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Keys and values of sentences that are decoded together.

    A place holds what one hypothesis read at one position: place `position * K + k` of a sentence.
    A hypothesis attends to the places of its own past. So hypotheses that change their order move
    none of the keys and values, but rows of `past`.

    Attributes:
        own: keys and values of the target, [N, L, 2, H, P, E]; those of no past are finite.
        past: added to the scores of attention: 0 at places of the past, else -inf, [N, 1, K, P].
        source: keys and values of the source, [N, L, 2, H, S, E].
        is_source: 0 where the source is no padding, else -inf, [N, 1, 1, S].
    """

    own: torch.Tensor
    past: torch.Tensor
    source: torch.Tensor
    is_source: torch.Tensor


class Incremental:
    """The weights of trained decoders in one precision, and their step.

    Args:
        models: whose decoders they are, one, or several whose probabilities are averaged; all have heads of one
            number and width, and one vocabulary.
        dtype: of matrix products; sums, norms and scores stay in float32, as under autocast.

    Attributes:
        num_layers, heads, width, vocab: L, of all decoders together, H, E and V.
        dtype: as given.
    """

    def __init__(self, *models: Transformer, dtype: torch.dtype) -> None:
        sizes = models[0].sizes
        self.num_layers = sum(model.sizes.decoder_layers for model in models)
        self.heads = sizes.heads
        self.width = sizes.d_model // sizes.heads
        self.vocab = sizes.tgt_vocab
        self.dtype = dtype
        self._models = models
        self._layers = [cast("list[DecoderLayer]", list(model.decoder)) for model in models]
        self._copies: dict[tuple[torch.Tensor, ...], torch.Tensor] = {}
        self._places: list[int] = []

    @property
    def row_bytes(self) -> int:
        """About the memory that a hypothesis takes with its scores and some positions."""
        of_position = self.num_layers * 2 * self.heads * self.width * self.dtype.itemsize
        return _SCORE_BYTES * self.vocab + _POSITIONS * of_position

    def refresh(self) -> bool:
        """Take the weights that the model has now; return whether some of them were moved.

        Sync: Does not block the host.
        """
        weights = [weight for model in self._models for weight in model.parameters()]
        for parts, copy in self._copies.items():
            for part, of_part in zip(
                parts, copy.split([len(part) for part in parts]), strict=True
            ):
                of_part.copy_(part)
        before, self._places = self._places, [weight.data_ptr() for weight in weights]
        return before != self._places

    def source(self, memories_NSD: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Write the keys and values of the sources that each model has encoded, [N, L, 2, H, S, E]."""
        number = 0
        for memory, layers in zip(memories_NSD, self._layers, strict=True):
            for layer in layers:
                found = self._linear(memory, layer.cross_attention.key_value)
                out[:, number].copy_(self._split(found, 2).permute(0, 2, 3, 1, 4))
                number += 1

    def step(self, ids_NK: torch.Tensor, position: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Return the logits of the next token, [R, V], and add this position to the cache.

        Args:
            ids_NK: latest token of each hypothesis.
            position: of these tokens, counted from 0, [1].
            cache: of all positions before.

        Sync: Does not block the host.
        """
        num_hypotheses = ids_NK.shape[1]
        places = position * num_hypotheses + torch.arange(num_hypotheses, device=position.device)
        own_places = places.view(1, 1, -1, 1).expand(len(ids_NK), -1, -1, -1)
        cache.past.scatter_(3, own_places, 0.0)
        number, found = 0, list[torch.Tensor]()
        for model, layers in zip(self._models, self._layers, strict=True):
            x_NKD = model.tgt_embedding(ids_NK, positions=position)
            for layer in layers:
                own, source = cache.own[:, number], cache.source[:, number]
                x_NKD = self._layer(layer, x_NKD, own, source, places, cache)
                number += 1
            found.append(self._linear(model.decoder_norm(x_NKD).flatten(0, 1), model.generator))
        if len(found) == 1:
            return found[0]
        # The log of the mean, but for a constant.
        log_probs = [logits.log_softmax(-1, dtype=torch.float32) for logits in found]
        return torch.stack(log_probs).logsumexp(0).to(self.dtype)

    def _layer(
        self,
        layer: DecoderLayer,
        x_NKD: torch.Tensor,
        own: torch.Tensor,
        source: torch.Tensor,
        places: torch.Tensor,
        cache: Cache,
    ) -> torch.Tensor:
        to_past = partial(self._attend_to_past, layer.self_attention, own, places, cache.past)
        to_source = partial(self._attend_to_source, layer.cross_attention, source, cache.is_source)
        parts = (to_past, to_source, partial(self._feed_forward, layer.feed_forward))
        for residual, sublayer in zip(layer.residuals, parts, strict=True):
            x_NKD = _residual(cast("Residual", residual), x_NKD, sublayer)
        return x_NKD

    def _attend_to_past(
        self,
        attention: Attention,
        own: torch.Tensor,
        places: torch.Tensor,
        past: torch.Tensor,
        x_NKD: torch.Tensor,
    ) -> torch.Tensor:
        found = self._split(self._linear(x_NKD, attention.query, attention.key_value), 3)
        own.index_copy_(3, places, found[:, :, 1:].permute(0, 2, 3, 1, 4))
        return self._attend(attention, own, past, found[:, :, 0])

    def _attend_to_source(
        self,
        attention: Attention,
        source: torch.Tensor,
        is_source: torch.Tensor,
        x_NKD: torch.Tensor,
    ) -> torch.Tensor:
        found = self._split(self._linear(x_NKD, attention.query), 1)
        return self._attend(attention, source, is_source, found[:, :, 0])

    def _attend(
        self,
        attention: Attention,
        keys_values: torch.Tensor,
        mask: torch.Tensor,
        queries_NKHE: torch.Tensor,
    ) -> torch.Tensor:
        heads = F.scaled_dot_product_attention(
            queries_NKHE.transpose(1, 2),
            keys_values[:, 0],
            keys_values[:, 1],
            attn_mask=mask.expand(-1, self.heads, queries_NKHE.shape[1], -1),
        )
        return self._linear(heads.transpose(1, 2).flatten(2), attention.out)

    def _feed_forward(self, part: FeedForward, x: torch.Tensor) -> torch.Tensor:
        return self._linear(part.activation(self._linear(x, part.inner)), part.outer)

    def _split(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Return [N, T, count, H, E]."""
        parts: torch.Tensor = x.unflatten(2, (count, self.heads, self.width))
        return parts

    def _linear(self, x: torch.Tensor, *linears: nn.Linear) -> torch.Tensor:
        """Return the outputs of layers side by side."""
        weight = self._copy(*(linear.weight for linear in linears))
        biases: list[torch.Tensor | None] = [linear.bias for linear in linears]
        given = [bias for bias in biases if bias is not None]
        bias = self._copy(*given) if given else None
        if onednn_linear is not None and x.is_cpu and self.dtype == torch.float32:
            product: torch.Tensor = onednn_linear(x, weight, bias, "none", [], "")
            return product
        return F.linear(x.to(self.dtype), weight, bias)

    def _copy(self, *weights: torch.Tensor) -> torch.Tensor:
        """Return weights one below the other in the precision of products; a copy, where it must be one."""
        if len(weights) == 1 and weights[0].dtype == self.dtype:
            return weights[0]
        found = self._copies.get(weights)
        if found is None:
            found = self._copies[weights] = torch.cat(weights).to(self.dtype)
        return found


def _residual(
    residual: Residual, x: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return what the model's own residual returns, without dropout."""
    if residual.is_pre:
        return x + sublayer(residual.norm(x))
    normed: torch.Tensor = residual.norm(x + sublayer(x))
    return normed
