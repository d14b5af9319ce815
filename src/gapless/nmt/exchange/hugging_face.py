"""Models of Hugging Face transformers: written from a trained model, and read to start one with.

With post-norm a model is a Marian model. With pre-norm it is a Pegasus model, which is Marian's with the layer
norms before the sub-layers and one at the end of each stack; the tokenizer is Marian's in both cases.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

from gapless.errors import UserError
from gapless.nmt.data.vocab import BOS, EOS, PAD, UNK, SubwordVocab, Vocabs, with_entries
from gapless.nmt.model.transformer import ModelSizes


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.settings.config import TrainConfig


CONFIG_JSON = "config.json"

# What a Marian model consists of, beside its weights.
FILES = (CONFIG_JSON, "vocab.json", "source.spm", "target.spm")

# Logits of entries that no text has: rows that fill up a table when written, and the begin mark when read,
# since in their loss there is no such entry. Far below all others, and no infinity, which would spread.
_NEVER_WRITTEN, _NEVER_READ = -1e9, -100.0

_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
_SHARED = "model.shared.weight"
_SOURCE, _TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_OUTPUT, _BIAS = "lm_head.weight", "final_logits_bias"
_POSITIONS = "embed_positions.weight"
_MODEL_TYPES = {"marian": "post", "pegasus": "pre"}


def _names(sizes: ModelSizes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each linear layer and layer norm here, and there: of several, one below the other."""
    to_itself = ("self_attn", "self_attn_layer_norm")
    to_source = ("encoder_attn", "encoder_attn_layer_norm")
    decoder = {"self_attention": to_itself, "cross_attention": to_source}
    for side, count, attentions in (
        ("encoder", sizes.encoder_layers, {"attention": to_itself}),
        ("decoder", sizes.decoder_layers, decoder),
    ):
        for number in range(count):
            here, there = f"{side}.{number}", f"model.{side}.layers.{number}"
            norms = [norm for _, norm in attentions.values()]
            for ours, (theirs, _) in attentions.items():
                part = f"{there}.{theirs}"
                yield f"{here}.{ours}.query", (f"{part}.q_proj",)
                yield f"{here}.{ours}.key_value", (f"{part}.k_proj", f"{part}.v_proj")
                yield f"{here}.{ours}.out", (f"{part}.out_proj",)
            yield f"{here}.feed_forward.inner", (f"{there}.fc1",)
            yield f"{here}.feed_forward.outer", (f"{there}.fc2",)
            for at, norm in enumerate([*norms, "final_layer_norm"]):
                yield f"{here}.residuals.{at}.norm", (f"{there}.{norm}",)
    if sizes.norm == "pre":
        yield "encoder_norm", ("model.encoder.layer_norm",)
        yield "decoder_norm", ("model.decoder.layer_norm",)


# --- writing ---


def write_hugging_face(
    model: Transformer, vocabs: Vocabs, config: TrainConfig, folder: Path, *, is_marian: bool
) -> None:
    """Write a model and its tokenizer.

    Args:
        model: on the CPU.
        vocabs: of the model.
        config: of its run.
        folder: is there, and empty.
        is_marian: whether it must be a Marian model.

    Raises:
        UserError: the model cannot be written as such a one.
    """
    sizes = model.sizes
    if is_marian and sizes.norm == "pre":
        raise UserError(
            "a Marian model has its layer norms after the sub-layers, and this one before them; train with "
            "`norm=post`, or export to the format huggingface, which makes it a Pegasus model, or to ctranslate2"
        )
    spms = [vocab.file(side) for vocab, side in ((vocabs.src, "source"), (vocabs.tgt, "target"))]
    for name, _ in spms:
        if not name.endswith(SubwordVocab.suffix):
            raise UserError(
                "the run was trained with `tokenizer=none`, and a Hugging Face model needs a sentencepiece model; "
                "export to the format ctranslate2"
            )
    for name, content in spms:
        (folder / name).write_bytes(content)
    is_joint = vocabs.src.tokens() == vocabs.tgt.tokens()
    _write_json(folder / "vocab.json", _ids(vocabs.src.tokens()))
    if not is_joint:
        _write_json(folder / "target_vocab.json", _ids(vocabs.tgt.tokens()))
    _write_json(folder / "tokenizer_config.json", _tokenizer(config, vocabs, is_joint=is_joint))
    _write_json(folder / CONFIG_JSON, _config(sizes, config))
    _write_json(folder / "generation_config.json", _generation(config))
    tensors = {name: tensor.contiguous() for name, tensor in _tensors_of(model)}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _tokenizer(config: TrainConfig, vocabs: Vocabs, *, is_joint: bool) -> dict[str, Any]:
    tokens = vocabs.src.tokens()
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.src,
        "target_lang": config.tgt,
        "separate_vocabs": not is_joint,
        "pad_token": tokens[PAD],
        "unk_token": tokens[UNK],
        "eos_token": tokens[EOS],
        "model_max_length": 2 * config.max_length + 1,
    }


def _config(sizes: ModelSizes, config: TrainConfig) -> dict[str, Any]:
    is_post = sizes.norm == "post"
    name = "MarianMTModel" if is_post else "PegasusForConditionalGeneration"
    found: dict[str, Any] = {
        "architectures": [name],
        "model_type": "marian" if is_post else "pegasus",
        "dtype": "float32",
        "d_model": sizes.d_model,
        "max_position_embeddings": 2 * config.max_length + 2,
        "activation_function": sizes.activation,
        "dropout": sizes.dropout,
        "attention_dropout": sizes.attention_dropout,
        "scale_embedding": True,
        "is_encoder_decoder": True,
        "encoder_layers": sizes.encoder_layers,
        "decoder_layers": sizes.decoder_layers,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.ffn,
        "decoder_ffn_dim": sizes.ffn,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
        "vocab_size": sizes.src_vocab,
        "tie_word_embeddings": sizes.share == "all" or (is_post and sizes.share == "decoder"),
    }
    if is_post:
        found["decoder_vocab_size"] = sizes.tgt_vocab
        found["share_encoder_decoder_embeddings"] = sizes.share == "all"
    else:
        # Pegasus has one size for all tables.
        found["vocab_size"] = max(sizes.src_vocab, sizes.tgt_vocab)
    return found


def _generation(config: TrainConfig) -> dict[str, Any]:
    """Return how the run searches; lengths count both marks here."""
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
        "suppress_tokens": [PAD, BOS],
        "max_length": config.max_length + 2,
        "num_beams": config.beam,
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
    }


def _tensors_of(model: Transformer) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = {name: weight.detach() for name, weight in model.named_parameters()}
    for ours, theirs in _names(model.sizes):
        for kind in ("weight", "bias"):
            parts = parameters[f"{ours}.{kind}"].chunk(len(theirs))
            for name, part in zip(theirs, parts, strict=True):
                yield f"{name}.{kind}", part.clone()
    sizes = model.sizes
    source, target, output = (
        layer.weight.detach()
        for layer in (model.src_embedding.table, model.tgt_embedding.table, model.generator)
    )
    bias = torch.zeros(sizes.tgt_vocab)
    if sizes.output_bias:
        bias = model.generator.bias.detach()
    if sizes.share == "all":
        tables = {_SHARED: source}
    elif sizes.norm == "post":
        tables = {_SOURCE: source, _TARGET: target}
        tables |= {_OUTPUT: output} if sizes.share == "none" else {}
    else:
        # All four names, or transformers would fill the others with random numbers.
        tables = {_SHARED: source, _SOURCE: source, _TARGET: target, _OUTPUT: output}
        size = max(sizes.src_vocab, sizes.tgt_vocab)
        tables = {name: _filled_up(table, size) for name, table in tables.items()}
        missing = torch.full((size - sizes.tgt_vocab,), _NEVER_WRITTEN)
        bias = torch.cat((bias, missing))
    yield from ((name, table.clone()) for name, table in tables.items())
    for side, embedding in (("encoder", model.src_embedding), ("decoder", model.tgt_embedding)):
        yield f"model.{side}.{_POSITIONS}", embedding.positions.clone()
    yield _BIAS, bias.clone().unsqueeze(0)


def _filled_up(table: torch.Tensor, size: int) -> torch.Tensor:
    return pad(table, (0, 0, 0, size - len(table)))


# --- reading ---


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model that was read.

    Attributes:
        settings: of a run, which the weights and vocabularies belong to.
        vocabs: in the order of our ids.
        weights: by our names.
    """

    settings: Mapping[str, Any]
    vocabs: Vocabs
    weights: Mapping[str, torch.Tensor]


def read_hugging_face(folder: Path) -> FoundModel:
    """Read a Marian model, or a Pegasus model that `write_hugging_face` wrote.

    Its output bias comes along as a weight that is trained. A piece that its sentencepiece model knows and its
    `vocab.json` does not is split further, where transformers would read it as unknown. A language such as
    `>>fra<<` follows the piece of a space, where transformers has it alone.

    Raises:
        UserError: a file is missing or damaged, or the model has something that ours has not.
    """
    found = _read_json(folder / CONFIG_JSON)
    settings, share = _settings(found, folder)
    tokenizer = _read_json(folder / "tokenizer_config.json", optional=True)
    sides, orders = list[SubwordVocab](), list[list[int]]()
    is_separate = bool(tokenizer.get("separate_vocabs"))
    for side in ("source", "target"):
        is_target = side == "target"
        path = folder / ("target_vocab.json" if is_target and is_separate else "vocab.json")
        size = found.get("decoder_vocab_size") if is_target and is_separate else None
        table = _Table.read(path, size or found["vocab_size"], tokenizer)
        # A source begins with no mark.
        begin = found.get("decoder_start_token_id") if is_target or not is_separate else None
        tokens, order = table.in_our_order(table.padding if begin is None else begin)
        spm = folder / f"{side}.spm"
        content = _read(spm)
        with _naming_damage(spm):
            sides.append(with_entries(content, tokens))
        orders.append(order)
    same = sides[0].file("")[1] == sides[1].file("")[1]
    vocabs = Vocabs(src=sides[0], tgt=sides[0] if same else sides[1])
    settings |= {
        "shared_vocab": same,
        "vocab_size": len(vocabs.src),
        "vocab_model": sides[0].model_type,
        "output_bias": True,
        "share": share,
    }
    return FoundModel(
        settings=settings,
        vocabs=vocabs,
        weights=_weights(_read_tensors(folder), settings, orders, folder),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} holds no {path.name}, which a Marian model needs; copy it there"
        ) from error


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    content = _read(path)
    with _naming_damage(path):
        return dict(json.loads(content))


def _settings(found: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """Return the sizes of the model, and what shares its tables."""
    kind = found.get("model_type")
    if kind not in _MODEL_TYPES:
        raise UserError(
            f"{folder} holds a model of the type {kind}, and only Marian models can be read; name another "
            "folder with `init_from`"
        )
    refused = [
        f"{name} {found.get(name)}"
        for name, taken in (
            ("scale_embedding", (True,)),
            ("activation_function", tuple(_ACTIVATIONS)),
            ("decoder_attention_heads", (found["encoder_attention_heads"],)),
            ("decoder_ffn_dim", (found["encoder_ffn_dim"],)),
        )
        if found.get(name) not in taken
    ]
    if refused:
        raise UserError(
            f"{folder} has {refused[0]} in {CONFIG_JSON}, which our model cannot have; name another folder "
            "with `init_from`"
        )
    is_tied = found.get("tie_word_embeddings", True)
    if found.get("share_encoder_decoder_embeddings", is_tied) and is_tied:
        share = "all"
    else:
        share = "decoder" if is_tied else "none"
    return {
        "tokenizer": "sentencepiece",
        "norm": _MODEL_TYPES[kind],
        "activation": _ACTIVATIONS[found["activation_function"]],
        "d_model": found["d_model"],
        "heads": found["encoder_attention_heads"],
        "ffn": found["encoder_ffn_dim"],
        "encoder_layers": found["encoder_layers"],
        "decoder_layers": found["decoder_layers"],
    }, share


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The entries of a vocabulary as Marian has them.

    Attributes:
        names: of all ids.
        padding, unknown, end: ids of marks.
        size: rows of the tables of vectors.
    """

    names: Mapping[int, str]
    padding: int
    unknown: int
    end: int
    size: int

    @classmethod
    def read(cls, path: Path, size: int, tokenizer: Mapping[str, Any]) -> _Table:
        ids = _read_json(path)
        marks = {"padding": "pad_token", "unknown": "unk_token", "end": "eos_token"}
        usual = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
        given = {mark: tokenizer.get(name, usual[name]) for mark, name in marks.items()}
        # Some versions write an object for a mark.
        names = {m: one["content"] if isinstance(one, dict) else one for m, one in given.items()}
        for name in names.values():
            if name not in ids:
                raise UserError(
                    f"{path} has no entry {name}, which the model needs; copy it again"
                )
        found = {mark: ids[name] for mark, name in names.items()}
        return cls(names={number: token for token, number in ids.items()}, size=size, **found)

    def in_our_order(self, begin: int) -> tuple[list[str], list[int]]:
        """Return the entries in the order of our ids, and their ids here.

        Padding may begin sentences here. Then the begin mark is an entry of its own, with the same vector.
        """
        marks = [self.padding, self.unknown, begin, self.end]
        order = [*marks, *(number for number in range(self.size) if number not in marks)]
        tokens = [self.names.get(number, f"<no entry {number}>") for number in order]
        if begin == self.padding:
            tokens[BOS] = "<s>" if "<s>" not in tokens else "<begin>"
        return tokens, order


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    is_there = path.exists()
    if not is_there:
        path = folder / "pytorch_model.bin"
    if not path.exists():
        raise UserError(
            f"{folder} holds neither model.safetensors nor pytorch_model.bin; save the model there in one file"
        )
    with _naming_damage(path):
        found: dict[str, torch.Tensor] = (
            load_file(str(path))
            if is_there
            else torch.load(path, map_location="cpu", weights_only=True)
        )
        return found


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Let an error name a file that is cut short, or is git's note of one.

    What libraries say is left out: torch's advice is to read it with `weights_only=False`.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{path} is damaged, or only part of it is there; copy it again"
        ) from error


def _weights(
    tensors: dict[str, torch.Tensor],
    settings: Mapping[str, Any],
    orders: list[list[int]],
    folder: Path,
) -> dict[str, torch.Tensor]:
    sizes = ModelSizes(
        src_vocab=len(orders[0]),
        tgt_vocab=len(orders[1]),
        **{name: settings[name] for name in ("norm", "encoder_layers", "decoder_layers", "share")},
    )

    def take(*names: str) -> torch.Tensor:
        """Return the first that is there, and strike out all."""
        present = [tensors.pop(name) for name in names if name in tensors]
        if not present:
            raise UserError(f"{folder} lacks the weight {names[0]}; save the model again")
        return present[0].float()

    weights = {
        f"{ours}.{kind}": torch.cat([take(f"{name}.{kind}") for name in theirs])
        for ours, theirs in _names(sizes)
        for kind in ("weight", "bias")
    }
    tables = (_SOURCE, _TARGET, _OUTPUT)
    if sizes.share == "all":
        weights["src_embedding.table.weight"] = take(_SHARED, *tables)[orders[0]]
    else:
        weights["src_embedding.table.weight"] = take(_SOURCE)[orders[0]]
        weights["tgt_embedding.table.weight"] = take(_TARGET)[orders[1]]
        if sizes.share == "none":
            weights["generator.weight"] = take(_OUTPUT)[orders[1]]
    # As transformers, which reads models without one.
    bias = tensors.pop(_BIAS, torch.zeros(max(orders[1]) + 1)).float().flatten()
    bias = bias[orders[1]].clamp(min=_NEVER_READ)
    if orders[1][BOS] == orders[1][PAD]:
        bias[BOS] = _NEVER_READ
    weights["generator.bias"] = bias
    left = tensors.keys() - {_SHARED, *tables}
    left = {name for name in left if not name.endswith(_POSITIONS)}
    if left:
        raise UserError(
            f"{folder} holds {min(left)}, for which our model has no place; name another folder with `init_from`"
        )
    return weights
