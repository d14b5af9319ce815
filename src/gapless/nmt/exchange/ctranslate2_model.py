"""A trained model in the format of CTranslate2."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch

from gapless.errors import UserError
from gapless.nmt.data.vocab import BOS, EOS, PAD, UNK


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gapless.nmt.data.vocab import Vocabs
    from gapless.nmt.model.attention import Attention
    from gapless.nmt.model.transformer import (
        DecoderLayer,
        EncoderLayer,
        FeedForward,
        Residual,
        Transformer,
    )


# Of an entry that is never predicted; CTranslate2 adds it to the entry's logit.
_NEVER = -1e9


def write_ctranslate2(model: Transformer, vocabs: Vocabs, folder: Path) -> None:
    """Write a model, and its vocabularies beside it as `source` and `target`.

    Args:
        model: on the CPU.
        vocabs: of the model.
        folder: is there, and empty.

    Raises:
        UserError: the package ctranslate2 cannot be found.
    """
    specs = _specs()
    sizes = model.sizes
    spec = specs.TransformerSpec.from_config(
        (sizes.encoder_layers, sizes.decoder_layers),
        sizes.heads,
        pre_norm=sizes.norm == "pre",
        activation=specs.common_spec.Activation[sizes.activation.upper()],
    )
    _set_side(spec.encoder, model, is_source=True)
    _set_side(spec.decoder, model, is_source=False)
    # As our own search, it never predicts padding or a begin mark.
    bias = torch.zeros(sizes.tgt_vocab)
    if sizes.output_bias:
        bias += model.generator.bias.detach()
    bias[[PAD, BOS]] = _NEVER
    spec.decoder.projection.weight, spec.decoder.projection.bias = model.generator.weight, bias
    source, target = vocabs.src.tokens(), vocabs.tgt.tokens()
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = target[UNK], target[BOS], target[EOS]
    config.decoder_start_token = target[BOS]
    config.add_source_eos = True
    config.layer_norm_epsilon = _epsilon(model)
    with torch.no_grad():
        spec.validate()
        spec.optimize()
        spec.save(str(folder))
    for vocab, side in ((vocabs.src, "source"), (vocabs.tgt, "target")):
        name, content = vocab.file(side)
        (folder / name).write_bytes(content)


def _specs() -> Any:
    try:
        return import_module("ctranslate2.specs")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the format ctranslate2 needs {error.name}, which cannot be found; "
            'run pip install "gapless[ctranslate2]"'
        ) from error


def _epsilon(model: Transformer) -> float:
    first = cast("EncoderLayer", model.encoder[0])
    return float(cast("Residual", first.residuals[0]).norm.eps)


def _set_side(spec: Any, model: Transformer, *, is_source: bool) -> None:
    """Fill in the encoder, or the decoder."""
    embedding = model.src_embedding if is_source else model.tgt_embedding
    (spec.embeddings[0] if is_source else spec.embeddings).weight = embedding.table.weight
    spec.scale_embeddings = math.sqrt(model.sizes.d_model)
    spec.position_encodings.encodings = embedding.positions
    if model.sizes.norm == "pre":
        _set_norm(spec.layer_norm, model.encoder_norm if is_source else model.decoder_norm)
    for layer_spec, layer in zip(
        spec.layer, model.encoder if is_source else model.decoder, strict=True
    ):
        _set_layer(layer_spec, layer, is_source=is_source)


def _set_layer(spec: Any, layer: Any, *, is_source: bool) -> None:
    if is_source:
        encoder = cast("EncoderLayer", layer)
        _set_attention(spec.self_attention, encoder.attention, to_itself=True)
        parts = [spec.self_attention, spec.ffn]
    else:
        decoder = cast("DecoderLayer", layer)
        _set_attention(spec.self_attention, decoder.self_attention, to_itself=True)
        _set_attention(spec.attention, decoder.cross_attention, to_itself=False)
        parts = [spec.self_attention, spec.attention, spec.ffn]
    feed_forward = cast("FeedForward", layer.feed_forward)
    _set_linear(spec.ffn.linear_0, [feed_forward.inner])
    _set_linear(spec.ffn.linear_1, [feed_forward.outer])
    for part, residual in zip(parts, layer.residuals, strict=True):
        _set_norm(part.layer_norm, residual.norm)


def _set_attention(spec: Any, attention: Attention, *, to_itself: bool) -> None:
    if to_itself:
        _set_linear(spec.linear[0], [attention.query, attention.key_value])
    else:
        _set_linear(spec.linear[0], [attention.query])
        _set_linear(spec.linear[1], [attention.key_value])
    _set_linear(spec.linear[-1], [attention.out])


def _set_linear(spec: Any, layers: Sequence[torch.nn.Linear]) -> None:
    """Fill in one linear layer with several of the same input, one below the other."""
    spec.weight = torch.cat([layer.weight.detach() for layer in layers])
    spec.bias = torch.cat([layer.bias.detach() for layer in layers])


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias
