"""Every setting of a training run, once: flag, key of `config.yaml` and field have one name.

The command line builds its help from this file, so importing it must load neither torch nor yaml.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gapless.device.precision import Precision
from gapless.errors import DataError, DeviceError, UserError
from gapless.nmt.settings.config_file import read_settings
from gapless.nmt.settings.interval import Interval, seconds_of
from gapless.plans import Plan, get_plan


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from dataclasses import Field


# Epochs that `average="auto"` averages.
_AUTO_AVERAGE = 5

_MAX_SEED = 2**63 - 1

# Of sizes: more than any machine has room for, and less than torch can count to.
_MOST = 2**31 - 1

# Powers of a length beyond these overflow.
MOST_PENALTY = 10

# Hypotheses of every sentence of a batch lie in memory together.
MOST_BEAM = 1024

# Of sacrebleu.
_TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl")

# Settings that are a number or `auto`, and of what.
_NUMBERS_OR_AUTO = {"average": "epochs", "accumulate": "batches"}


def _setting(
    group: str,
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
    compare: bool = True,
) -> Any:
    """Return the field of a setting.

    Args:
        group: under which the help lists its flag.
        default: value of a run that does not set it.
        text: says in the help, and in `config.yaml`, what it is.
        at_least: lowest value; None: no limit.
        at_most: highest value; None: no limit.
        below: values must be lower than this; None: no limit.
        choices: all values; None: any.
        compare: whether it is also an option of `gapless compare`. Settings that only a whole run
            has are not, nor are those that compare sets for each plan.
    """
    return field(
        default=default,
        metadata={
            "group": group,
            "help": text,
            "at_least": at_least,
            "at_most": at_most,
            "below": below,
            "choices": choices,
            "compare": compare,
        },
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of one run.

    The defaults are those of `gapless compare`, which are of Transformer base. `gapless train`
    chooses by corpus and device (`gapless.nmt.settings.defaults`) where the user gave nothing.

    None leaves a setting to the plan, the corpus or the device; `gapless.nmt.settings.effective_settings` says
    how it is decided then.

    Raises:
        UserError: a setting is out of range or names something that does not exist.
    """

    data: str | None = _setting(
        "data", None, "folder or file of sentence pairs; none: embedded corpus"
    )
    src: str = _setting(
        "data", "en", "source side, by code or name: a file ending, column or JSON key"
    )
    tgt: str = _setting("data", "zh", "target side")
    columns: str | None = _setting(
        "data",
        None,
        "names of the first columns of a table without a header, in order: en,zh or _,en,zh",
    )
    score_tokenizer: str | None = _setting(
        "data",
        None,
        "sacrebleu tokenizer of BLEU; none: of Chinese, Japanese and Korean their own, else 13a",
        choices=_TOKENIZERS,
        compare=False,
    )
    tokenizer: str = _setting(
        "data",
        "sentencepiece",
        "sentencepiece, or none: text is tokenised already",
        choices=("sentencepiece", "none"),
    )
    vocab_size: int | None = _setting(
        "data", None, "subwords of a vocabulary", at_least=5, at_most=_MOST
    )
    vocab_model: str = _setting(
        "data", "bpe", "subword model: bpe or unigram", choices=("bpe", "unigram")
    )
    shared_vocab: bool = _setting("data", False, "one vocabulary for both sides")
    max_length: int = _setting(
        "data",
        200,
        "longest sentence in tokens; longer ones are not trained on",
        at_least=1,
        at_most=_MOST,
    )

    allow_changed_data: bool = _setting(
        "data",
        False,
        "resume although training, validation or test text is not what the run began with",
        compare=False,
    )

    plan: str = _setting(
        "plan", "auto", "how the loop moves its work; see gapless plans", compare=False
    )
    streams: int | None = _setting("plan", None, "number of streams, 1 to 8", compare=False)
    sync_interval: int | None = _setting(
        "plan", None, "batches between two host waits", compare=False
    )
    loss_interval: int | None = _setting(
        "plan", None, "batches between two reads of the losses", compare=False
    )
    prefetch: int | None = _setting(
        "plan", None, "batches moved to the device ahead of their use", compare=False
    )
    workers: int | None = _setting("plan", None, "processes that make batches")
    pin_memory: bool | None = _setting(
        "plan", None, "stage batches in page-locked memory", compare=False
    )
    run_ahead: int | None = _setting(
        "plan", None, "most batches the host may be ahead of the device", compare=False
    )
    capture_memory: float | None = _setting(
        "plan",
        None,
        "GiB of device memory above which no more shapes are captured; none: 80 % of it",
        at_least=0.0,
        at_most=float(_MOST),
    )

    epochs: int = _setting("run", 40, "passes over the training pairs", at_least=1, compare=False)
    max_steps: int | None = _setting(
        "run", None, "stop after so many updates", at_least=1, compare=False
    )
    max_time: str | None = _setting(
        "run",
        None,
        "end about this time (90s, 10min, 2h), final model and scores included",
        compare=False,
    )
    patience: int = _setting(
        "run",
        0,
        "stop after so many validations without a better BLEU or loss; 0: never",
        at_least=0,
        compare=False,
    )
    batch_size: int | None = _setting("batches", None, "most sentences in a batch", at_least=1)
    batch_tokens: int | None = _setting(
        "batches", None, "most tokens in a batch, padding included", at_least=1
    )
    pack: bool | None = _setting(
        "batches",
        None,
        "pack sentences one after the other, without padding; none: with batch-tokens on a GPU, "
        "unless attention-dropout is set",
    )
    fixed_shapes: bool | None = _setting(
        "batches", None, "pad batches to few shapes; none: if the plan may capture the step"
    )
    one_shape: bool | None = _setting(
        "batches",
        None,
        "updates have batches of one shape; none: with several GPUs, where shapes are fixed",
    )
    compile: bool | None = _setting(
        "device", None, "compile the model's layers; none: if the plan may capture the step"
    )
    accumulate: int | str = _setting(
        "batches",
        1,
        "batches of each GPU in one update of the weights; auto: as many as keep the update, "
        "whatever the number of GPUs",
        at_least=1,
    )
    precision: str = _setting(
        "device", "fp32", "fp32, tf32, bf16 or fp16", choices=get_args(Precision), compare=False
    )
    device: str = _setting("device", "auto", "auto, cpu, cuda or cuda:N", compare=False)
    seed: int = _setting(
        "run", 1, "of weights, dropout and the order of batches", at_least=0, compare=False
    )
    deterministic: bool = _setting(
        "run", False, "equal runs give equal bits; a little slower", compare=False
    )
    run_dir: str | None = _setting(
        "run", None, "run folder; none: runs/train, runs/train2, ...", compare=False
    )

    init_from: str | None = _setting(
        "model",
        None,
        "run folder whose vocabularies and weights to start with, for other text",
        compare=False,
    )
    d_model: int = _setting("model", 512, "width of the model", at_least=2, at_most=_MOST)
    heads: int = _setting("model", 8, "attention heads", at_least=1, at_most=_MOST)
    ffn: int = _setting(
        "model", 2048, "inner width of the feed-forward layers", at_least=1, at_most=_MOST
    )
    encoder_layers: int = _setting("model", 6, "encoder layers", at_least=1, at_most=_MOST)
    decoder_layers: int = _setting("model", 6, "decoder layers", at_least=1, at_most=_MOST)
    norm: str = _setting(
        "model",
        "pre",
        "layer norm before (pre) or after (post) each sub-layer",
        choices=("pre", "post"),
    )
    share: str = _setting(
        "model",
        "decoder",
        "share embeddings: all, decoder (target and output), none",
        choices=("all", "decoder", "none"),
    )
    dropout: float = _setting(
        "model", 0.1, "on embeddings and sub-layers", at_least=0.0, below=1.0
    )
    attention_dropout: float = _setting(
        "model", 0.0, "on attention weights", at_least=0.0, below=1.0
    )

    label_smoothing: float = _setting(
        "optimizer and schedule",
        0.1,
        "share of probability spread over the vocabulary",
        at_least=0.0,
        below=1.0,
    )
    lr: float = _setting(
        "optimizer and schedule", 7e-4, "highest learning rate", at_least=0.0, at_most=1e30
    )
    warmup: int = _setting(
        "optimizer and schedule", 4000, "updates until the highest learning rate", at_least=0
    )
    schedule: str = _setting(
        "optimizer and schedule",
        "inverse-sqrt",
        "after the warm-up: inverse-sqrt, cosine, constant",
        choices=("inverse-sqrt", "cosine", "constant"),
    )
    clip_norm: float = _setting(
        "optimizer and schedule", 1.0, "longest gradient; 0: no limit", at_least=0.0
    )
    weight_decay: float = _setting(
        "optimizer and schedule", 0.0, "of AdamW; 0 is Adam", at_least=0.0
    )

    on_nonfinite: str = _setting(
        "run",
        "stop",
        "when a loss is NaN or infinite: stop, or skip that update",
        choices=("stop", "skip"),
        compare=False,
    )
    save_every: str = _setting(
        "run",
        "10min",
        "updates (200) or time (30s, 10min, 2h) between two saved states; one after epochs that are validated too",
        compare=False,
    )
    keep: int = _setting("run", 3, "newest saved states that are kept", at_least=1, compare=False)
    grace: float = _setting(
        "run",
        20.0,
        "seconds in which a run that is asked to stop ends the update and saves",
        at_least=0.0,
        compare=False,
    )
    loader_timeout: float = _setting(
        "run",
        300.0,
        "seconds to wait for a batch before the loader's workers count as stuck",
        at_least=0.1,
        compare=False,
    )
    val_interval: int = _setting(
        "run", 1, "epochs between two validations", at_least=1, compare=False
    )
    validate_every: str | None = _setting(
        "run",
        None,
        "updates (500) or time (10min) between two validations; none: val-interval epochs",
        compare=False,
    )
    average: int | str = _setting(
        "decoding",
        "auto",
        "newest epochs whose weights are averaged into the final model; auto: that of 5, or the last "
        "or best weights, whichever translates the validation pairs best, by more than luck",
        at_least=1,
        compare=False,
    )
    beam: int = _setting(
        "decoding",
        5,
        "hypotheses of the final decoding",
        at_least=1,
        at_most=MOST_BEAM,
        compare=False,
    )
    length_penalty: float = _setting(
        "decoding",
        1.0,
        "exponent a in score / length ** a",
        at_least=-MOST_PENALTY,
        at_most=MOST_PENALTY,
        compare=False,
    )
    early_stopping: bool = _setting(
        "decoding", False, "end a search when as many as the beam have ended", compare=False
    )

    def __post_init__(self) -> None:
        """Check what can be checked without data or device."""
        self.resolved_plan()
        for item in fields(self):
            _check(item, getattr(self, item.name))
        if self.seed > _MAX_SEED:
            raise UserError(f"`seed` must be at most {_MAX_SEED}, but is {self.seed}")
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

    def save_interval(self) -> Interval:
        """Return what is between two saved states.

        Raises:
            UserError: `save_every` names no interval.
        """
        return Interval.of(self.save_every)

    def validation_interval(self) -> Interval | None:
        """Return what is between two validations; None: `val_interval` epochs.

        Raises:
            UserError: `validate_every` names no interval.
        """
        if self.validate_every is None:
            return None
        return Interval.of(self.validate_every, name="validate_every")

    def time_limit_seconds(self) -> float | None:
        """Return the seconds in which the run is to be done; None if it has no limit.

        Raises:
            UserError: `max_time` names no time.
        """
        return None if self.max_time is None else seconds_of(self.max_time, name="max_time")

    @property
    def num_averaged(self) -> int:
        """How many epochs are averaged."""
        return _AUTO_AVERAGE if isinstance(self.average, str) else self.average

    @property
    def num_accumulated(self) -> int:
        """How many batches of this process are in an update.

        Raises:
            UserError: it is `auto`, and nobody has decided it.
        """
        if isinstance(self.accumulate, str):
            raise UserError(
                "`accumulate` is auto, which only `gapless train` decides, expected a number"
            )
        return self.accumulate

    def capture_memory_bytes(self) -> int | None:
        """Return the budget for captures in bytes, None if it is not set."""
        return None if self.capture_memory is None else int(self.capture_memory * 2**30)

    def column_names(self) -> tuple[str, ...] | None:
        """Return the names in `columns`.

        Raises:
            DataError: there are not two or more.
        """
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",")]
        if len(names) < 2 or not all(names):
            raise DataError(
                f"`columns` must be two names or more, such as en,zh, but is {self.columns!r}"
            )
        return tuple(names)


# A path takes one of the two slashes of an address away.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_ONE_SLASH = re.compile(r":/(?!/)")


def _check_path(value: str, *, name: str) -> None:
    if not value.strip():
        raise UserError(
            f"`{name}` is {value!r}, expected a file or folder; name one, or leave it out"
        )


def _check_data(value: str, *, name: str) -> None:
    _check_path(value, name=name)
    if value == "-":
        raise DataError(
            f"`{name}` is -, expected a file or folder: the text is read more than once; write it to a file"
        )
    if _ADDRESS.match(value) and not Path(value).exists():
        raise DataError(
            f"`{name}` is the address {_ONE_SLASH.sub('://', value)}, expected a file or folder; download it first"
        )


def _check_lr(value: float, *, name: str) -> None:
    if value == 0:
        raise UserError(f"`{name}` must be above 0, but is 0: no weight would change")


# What checks settings that limits alone do not say.
_FORMS: dict[str, Callable[..., Any]] = {
    "lr": _check_lr,
    "data": _check_data,
    "run_dir": _check_path,
    "save_every": Interval.of,
    "validate_every": Interval.of,
    "max_time": seconds_of,
}


def _check(item: Field[Any], value: Any) -> None:
    name, limits = f"`{item.name}`", item.metadata
    if value is None:
        return
    if item.name in _FORMS:
        _FORMS[item.name](value, name=item.name)
    if item.name in _NUMBERS_OR_AUTO and isinstance(value, str):
        if value != "auto":
            of_what = _NUMBERS_OR_AUTO[item.name]
            raise UserError(f"{name} must be auto or a number of {of_what}, but is {value!r}")
        return
    if limits["choices"] is not None and value not in limits["choices"]:
        kind = DeviceError if item.name == "precision" else DataError
        raise kind(f"{name} must be one of {', '.join(limits['choices'])}, but is {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, but is {value}")
    least, below = limits["at_least"], limits["below"]
    if below is not None and not least <= value < below:
        raise UserError(f"{name} must be {least:g} or more and below {below:g}, but is {value}")
    if least is not None and value < least:
        raise UserError(f"{name} must be at least {least}, but is {value}")
    most = limits["at_most"]
    if most is not None and value > most:
        raise UserError(f"{name} must be at most {most}, but is {value}")


# A model that learns the embedded corpus in about a minute on two cores.
DEMO: dict[str, Any] = {
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


def settings_given(flags: Mapping[str, Any], *, file: Path | None = None) -> dict[str, Any]:
    """Return the settings that a user gave: flags win over the file.

    A target that is named anew is not scored with the tokenizer of the file.

    Args:
        flags: settings by name; those that are None were not given.
        file: the `config.yaml` of an earlier run, or a part of one.

    Raises:
        UserError: the file cannot be read, or has an unknown setting, or one of another type or out of
            range.
    """
    of_flags = {name: value for name, value in flags.items() if value is not None}
    if file is None:
        return of_flags
    of_file = read_settings(file, TrainConfig)
    if "val_interval" in of_flags:
        # It would have no effect.
        of_file.pop("validate_every", None)
    if "tgt" in of_flags and of_flags["tgt"] != of_file.get("tgt"):
        of_file.pop("score_tokenizer", None)
    _check_of_file({name: of_file[name] for name in of_file.keys() - of_flags.keys()}, file=file)
    return of_file | of_flags


def _check_of_file(values: Mapping[str, Any], *, file: Path) -> None:
    """Check the settings of a file each alone, so that an error names the file and no flag."""
    for item in fields(TrainConfig):
        try:
            _check(item, values.get(item.name))
        except UserError as error:
            message = str(error).replace(f"`{item.name}`", f"{item.name} in {file}")
            raise type(error)(message) from error


def settings_of_new_run(flags: Mapping[str, Any], *, file: Path | None = None) -> dict[str, Any]:
    """Return the settings that a user gave for a new run: as `settings_given`.

    A target that is named is scored as its language is, whatever the file's run was scored with.

    Raises:
        UserError: as of `settings_given`, or settings of the file contradict each other.
    """
    given = settings_given(flags, file=file)
    if file is not None and given.get("validate_every") is not None:
        if flags.get("validate_every") is not None:
            given.pop("val_interval", None)
        # Files of runs have all settings, those that nobody set as well.
        elif given.get("val_interval", TrainConfig.val_interval) != TrainConfig.val_interval:
            raise UserError(
                f"val_interval and validate_every in {file} both say when to validate; leave out one of them"
            )
    if flags.get("tgt") is not None and flags.get("score_tokenizer") is None:
        given.pop("score_tokenizer", None)
    return given


def make_config(flags: Mapping[str, Any], *, file: Path | None = None) -> TrainConfig:
    """Return the settings of a run: flags win over the file, the file over the defaults.

    Args:
        flags: settings that were given; those that are None were not.
        file: the `config.yaml` of an earlier run.

    Raises:
        UserError: the file cannot be read, or a setting is unknown or out of range.
    """
    given = settings_given(flags, file=file)
    is_demo = given.get("data") is None
    settings: dict[str, Any] = {**(DEMO if is_demo else {}), **given}
    config = TrainConfig(**settings)
    if config.batch_size is None and config.batch_tokens is None:
        config = replace(config, batch_tokens=_DEFAULT_BATCH_TOKENS)
    return config
