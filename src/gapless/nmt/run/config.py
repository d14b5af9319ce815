"""Every setting of a training run, once: flag, key of `config.yaml` and field have one name.

The command line builds its help from this file, so importing it must load neither torch nor yaml.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from gapless.device.precision import Precision
from gapless.errors import DataError, DeviceError, UserError
from gapless.plans import Plan, get_plan


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


CHOICES = {
    "precision": get_args(Precision),
    "tokenizer": ("sentencepiece", "none"),
    "vocab_model": ("bpe", "unigram"),
    "norm": ("pre", "post"),
    "share": ("all", "decoder", "none"),
    "schedule": ("inverse-sqrt", "cosine", "constant"),
}


def _option(group: str, default: Any, text: str) -> Any:
    return field(default=default, metadata={"group": group, "help": text})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of one run; `None` stands for "as the plan, the corpus or the machine has it".

    Raises:
        UserError: a setting is out of range or names something that does not exist.
    """

    data: str | None = _option(
        "data", None, "folder or file of sentence pairs; none: embedded corpus"
    )
    src: str = _option("data", "en", "source side: a file ending, column or JSON key")
    tgt: str = _option("data", "zh", "target side")
    columns: str | None = _option(
        "data", None, "names of the first two columns of a TSV or JSON: en,zh"
    )
    tokenizer: str = _option(
        "data", "sentencepiece", "sentencepiece, or none: text is tokenised already"
    )
    vocab_size: int | None = _option(
        "data", None, "subwords; none: 8000, or what the text can give"
    )
    vocab_model: str = _option("data", "bpe", "subword model: bpe or unigram")
    shared_vocab: bool = _option("data", False, "one vocabulary for both sides")
    max_length: int = _option(
        "data", 200, "longest sentence in tokens; longer ones are not trained on"
    )

    plan: str = _option("plan", "auto", "how the loop moves its work; see gapless plans")
    streams: int | None = _option("plan", None, "number of streams, 1 to 8")
    sync_interval: int | None = _option("plan", None, "batches between two host waits")
    loss_interval: int | None = _option("plan", None, "batches between two reads of the losses")
    prefetch: int | None = _option("plan", None, "batches moved to the device ahead of their use")
    workers: int | None = _option("plan", None, "processes that make batches")
    pin_memory: bool | None = _option("plan", None, "stage batches in page-locked memory")
    run_ahead: int | None = _option(
        "plan", None, "most batches the host may be ahead of the device"
    )
    capture_memory: float | None = _option(
        "plan",
        None,
        "GiB of device memory above which no more shapes are captured; none: 80 % of it",
    )

    epochs: int = _option("run", 40, "passes over the training pairs")
    max_steps: int | None = _option("run", None, "stop after so many updates")
    batch_size: int | None = _option("batches", None, "most sentences in a batch")
    batch_tokens: int | None = _option("batches", None, "most tokens in a batch, padding included")
    pack: bool | None = _option(
        "batches",
        None,
        "pack sentences one after the other, without padding; none: with batch-tokens on a GPU",
    )
    fixed_shapes: bool | None = _option(
        "batches", None, "pad batches to few shapes; none: if the plan may capture the step"
    )
    compile: bool | None = _option(
        "device", None, "compile the model's layers; none: if the plan may capture the step"
    )
    accumulate: int = _option("batches", 1, "batches in one update of the weights")
    precision: str = _option("device", "fp32", "fp32, tf32, bf16 or fp16")
    device: str = _option("device", "auto", "auto, cpu, cuda or cuda:N")
    seed: int = _option("run", 1, "of weights, dropout and the order of batches")
    deterministic: bool = _option("run", False, "equal runs give equal bits; a little slower")
    run_dir: str | None = _option("run", None, "run folder; none: runs/train, runs/train2, ...")

    d_model: int = _option("model", 512, "width of the model")
    heads: int = _option("model", 8, "attention heads")
    ffn: int = _option("model", 2048, "inner width of the feed-forward layers")
    encoder_layers: int = _option("model", 6, "encoder layers")
    decoder_layers: int = _option("model", 6, "decoder layers")
    norm: str = _option("model", "pre", "layer norm before (pre) or after (post) each sub-layer")
    share: str = _option(
        "model", "decoder", "share embeddings: all, decoder (target and output), none"
    )
    dropout: float = _option("model", 0.1, "on embeddings and sub-layers")
    attention_dropout: float = _option("model", 0.0, "on attention weights")

    label_smoothing: float = _option(
        "optimizer and schedule", 0.1, "share of probability spread over the vocabulary"
    )
    lr: float = _option("optimizer and schedule", 7e-4, "highest learning rate")
    warmup: int = _option(
        "optimizer and schedule", 4000, "updates until the highest learning rate"
    )
    schedule: str = _option(
        "optimizer and schedule",
        "inverse-sqrt",
        "after the warm-up: inverse-sqrt, cosine, constant",
    )
    clip_norm: float = _option("optimizer and schedule", 1.0, "longest gradient; 0: no limit")
    weight_decay: float = _option("optimizer and schedule", 0.0, "of AdamW; 0 is Adam")

    val_interval: int = _option("run", 1, "epochs between two validations")
    average: int = _option("decoding", 5, "newest epoch checkpoints averaged into the final model")
    beam: int = _option("decoding", 5, "hypotheses of the final decoding")
    length_penalty: float = _option("decoding", 1.0, "exponent a in score / length ** a")
    early_stopping: bool = _option(
        "decoding", False, "end a search when as many as the beam have ended"
    )

    def __post_init__(self) -> None:
        """Check what can be checked without data or device."""
        self.resolved_plan()
        _check_numbers(self)
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                kind = DeviceError if name == "precision" else DataError
                raise kind(f"`{name}` must be one of {', '.join(choices)}, but is {value!r}")
        for name in ("dropout", "attention_dropout", "label_smoothing"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(
                    f"`{name}` must be 0 or more and below 1, but is {getattr(self, name)}"
                )
        if self.d_model % (2 * self.heads):
            raise UserError(
                f"`d_model` must be a multiple of 2 * `heads` = {2 * self.heads}, but is {self.d_model}"
            )
        if self.columns is not None and self.data is None:
            raise UserError(
                f"`columns` is {self.columns!r}, but there is no data whose columns it could name; "
                "add `data` or leave `columns` out"
            )
        if self.share == "all" and not self.shared_vocab:
            raise UserError('`share="all"` needs one vocabulary: add `shared_vocab=True`')
        if self.pack and self.fixed_shapes:
            raise UserError(
                "`pack` and `fixed_shapes` exclude each other; add `pack=False` or `fixed_shapes=False`"
            )

    def resolved_plan(self) -> Plan:
        """Return the plan with this run's knobs.

        Raises:
            PlanError: the plan is unknown, or a knob is out of range.
        """
        return get_plan(self.plan).with_knobs(
            streams=self.streams,
            sync_interval=self.sync_interval,
            loss_interval=self.loss_interval,
            prefetch=self.prefetch,
            workers=self.workers,
            pin_memory=self.pin_memory,
            run_ahead=self.run_ahead,
        )

    def resolved_for(
        self, *, is_accelerator: bool, begun: Mapping[str, Any] | None = None
    ) -> TrainConfig:
        """Return these settings with what depends on the device decided: layout and compiling.

        Args:
            is_accelerator: whether the run's device is one.
            begun: `layout()` of the run that goes on, whose batches have to stay what they were.

        Raises:
            UserError: packing was asked for without a budget of tokens, or a run that goes on
                cannot have the batches that were asked for.
        """
        if begun is not None:
            return self._as_begun(begun)
        plan = self.resolved_plan()
        captures = plan.graphs != "never" and is_accelerator
        pack, fixed = self.pack, self.fixed_shapes
        if pack and self.batch_tokens is None:
            raise UserError("`pack` needs a budget of tokens: add `batch_tokens`")
        if pack is None:
            by_tokens = self.batch_tokens is not None and self.batch_size is None
            pack = by_tokens and is_accelerator and not fixed
        if fixed is None:
            fixed = captures and not pack
        compiles = captures if self.compile is None else self.compile
        return replace(self, pack=pack, fixed_shapes=fixed, compile=compiles)

    def _as_begun(self, begun: Mapping[str, Any]) -> TrainConfig:
        # Also between epochs: another seed would hold out other pairs, and schedules count updates.
        for name in ("pack", "fixed_shapes", *_KEPT):
            asked = getattr(self, name)
            left_open = asked is None and name not in _KEPT
            if not left_open and asked != begun.get(name, asked):
                raise UserError(
                    f"`{name}` is {_shown(asked)}, but the run began with "
                    f"{_shown(begun[name])} and has to go on so; leave it out, or "
                    "start a new run"
                )
        compiles = begun["compile"] if self.compile is None else self.compile
        return replace(
            self, pack=begun["pack"], fixed_shapes=begun["fixed_shapes"], compile=compiles
        )

    def layout(self) -> dict[str, Any]:
        """Return what a run that goes on from here has to have as it was.

        It cuts and orders the batches, makes ids of words, or changes the model unseen.
        """
        decided = {name: bool(getattr(self, name)) for name in ("pack", "fixed_shapes", "compile")}
        return decided | {name: getattr(self, name) for name in _KEPT}

    def capture_memory_bytes(self) -> int | None:
        """Return the budget for captures in bytes, None if it is not set."""
        return None if self.capture_memory is None else int(self.capture_memory * 2**30)

    def column_names(self) -> tuple[str, str] | None:
        """Return the two names in `columns`.

        Raises:
            DataError: there are not two.
        """
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",")]
        if len(names) != 2 or not all(names):
            raise DataError(f"`columns` must be two names such as en,zh, but is {self.columns!r}")
        return names[0], names[1]

    def to_yaml(self) -> str:
        """Return the settings as commented YAML, one key a flag."""
        import yaml

        lines = []
        values = asdict(self)
        for item in fields(self):
            text = yaml.safe_dump({item.name: values[item.name]}, allow_unicode=True).strip()
            lines.append(f"{text}  # {item.metadata['help']}\n")
        return "".join(lines)


def _check_numbers(config: TrainConfig) -> None:
    for item in fields(config):
        value, name = getattr(config, item.name), f"`{item.name}`"
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be a finite number, but is {value}")
        if value is not None and item.name in _LEAST and value < _LEAST[item.name]:
            raise UserError(f"{name} must be at least {_LEAST[item.name]}, but is {value}")
    if config.seed > _MAX_SEED:
        raise UserError(f"`seed` must be at most {_MAX_SEED}, but is {config.seed}")


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower()


_MAX_SEED = 2**63 - 1

# Batches done are counted, not named: what cuts and orders them has to stay as it is. So has what
# makes ids of words, and what no weight's shape would show.
_KEPT = (
    *("seed", "max_length", "batch_size", "batch_tokens", "accumulate"),
    *("tokenizer", "vocab_size", "vocab_model", "heads", "norm"),
)

_LEAST: dict[str, float] = {
    "seed": 0,
    "vocab_size": 5,
    "max_length": 1,
    "capture_memory": 0.0,
    "epochs": 1,
    "max_steps": 1,
    "batch_size": 1,
    "batch_tokens": 1,
    "accumulate": 1,
    "d_model": 2,
    "heads": 1,
    "ffn": 1,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "lr": 0.0,
    "warmup": 0,
    "clip_norm": 0.0,
    "weight_decay": 0.0,
    "val_interval": 1,
    "average": 1,
    "beam": 1,
}

# A model that learns the embedded corpus in about a minute on two cores.
DEMO = {
    "epochs": 4,
    "val_interval": 4,
    "vocab_size": 1500,
    "shared_vocab": True,
    "share": "all",
    "max_length": 60,
    "batch_tokens": 750,
    "d_model": 128,
    "heads": 4,
    "ffn": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "label_smoothing": 0.1,
    "lr": 3e-3,
    "warmup": 150,
    "schedule": "cosine",
    "average": 1,
    "beam": 4,
}

_DEFAULT_BATCH_TOKENS = 4096


def make_config(flags: Mapping[str, Any], *, file: Path | None = None) -> TrainConfig:
    """Return the settings of a run: flags win over the file, the file over the defaults.

    Args:
        flags: settings that were given; those that are None were not.
        file: the `config.yaml` of an earlier run.

    Raises:
        UserError: the file cannot be read, or a setting is unknown or out of range.
    """
    given = _read_yaml(file) if file is not None else {}
    given |= {name: value for name, value in flags.items() if value is not None}
    is_demo = given.get("data") is None
    settings: dict[str, Any] = {**(DEMO if is_demo else {}), **given}
    config = TrainConfig(**settings)
    if config.batch_size is None and config.batch_tokens is None:
        config = replace(config, batch_tokens=_DEFAULT_BATCH_TOKENS)
    return config


def _read_yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"config {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"config {file} is not YAML: {reason}") from error
    known = {item.name for item in fields(TrainConfig)}
    if not isinstance(values, dict):
        raise UserError(f"config {file} holds no settings, expected lines such as lr: 0.001")
    unknown = sorted(set(map(str, values)) - known)
    if unknown:
        raise UserError(f"config {file} has unknown settings {', '.join(unknown)}")
    hints = get_type_hints(TrainConfig)
    return {
        name: _typed(value, hints[name], f"{name} in {file}") for name, value in values.items()
    }


_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _typed(value: Any, hint: Any, what: str) -> Any:
    """Return a setting from YAML; 7e-4, which is text there, and 1 count as numbers."""
    kinds = get_args(hint) or (hint,)
    if type(value) in kinds:
        return value
    if float in kinds and type(value) in (int, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise UserError(f"{what} must be {_KINDS[kinds[0]]}, but is {value!r}")
