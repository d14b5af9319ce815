"""All settings of a training run: those of its groups, checked together, and made from flags and files.

The command line builds its help from this file, so importing it must load neither torch nor yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError
from gapless.nmt.settings.config_file import read_settings
from gapless.nmt.settings.data_settings import DataSettings
from gapless.nmt.settings.setting import check_setting
from gapless.nmt.settings.setting_groups import (
    BatchSettings,
    DecodingSettings,
    DeviceSettings,
    ModelSettings,
    OptimizerSettings,
    PlanSettings,
    RunSettings,
)


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# The help, and `config.yaml`, list the fields of the last group first.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    DecodingSettings,
    OptimizerSettings,
    ModelSettings,
    DeviceSettings,
    BatchSettings,
    RunSettings,
    PlanSettings,
    DataSettings,
):
    """The settings of one run.

    The defaults are those of `gapless compare`, which are of Transformer base. `gapless train`
    chooses by corpus and device (`gapless.nmt.settings.defaults`) where the user gave nothing.

    None leaves a setting to the plan, the corpus or the device; `gapless.nmt.settings.effective_settings`
    says how it is decided then.

    Raises:
        UserError: a setting is out of range or names something that does not exist.
    """

    def __post_init__(self) -> None:
        """Check what can be checked without data or device."""
        self.resolved_plan()
        for item in fields(self):
            check_setting(item, getattr(self, item.name))
        if self.d_model % (2 * self.heads):
            raise UserError(
                f"`d_model` must be a multiple of 2 * `heads` = {2 * self.heads}, but is {self.d_model}"
            )
        if self.columns is not None and self.data is None:
            raise UserError(
                f"`columns` is {self.columns!r}, but there is no data whose columns it could name; "
                "add `data` or leave `columns` out"
            )
        # Texts that name several things, before hours of work on the data.
        self.weight_numbers()
        self.length_limits()
        self.column_names()
        self.tag_names()
        # A model that was read may have one table of ids for two ways to split text.
        if self.share == "all" and not self.shared_vocab and self.init_from is None:
            raise UserError('`share="all"` needs one vocabulary: add `shared_vocab=True`')
        if self.bpe_dropout and (self.tokenizer, self.vocab_model) != ("sentencepiece", "bpe"):
            raise UserError(
                "`bpe_dropout` needs subwords made by bpe; leave it out, or use `vocab_model=bpe`"
            )
        if self.pack and self.fixed_shapes:
            raise UserError(
                "`pack` and `fixed_shapes` exclude each other; add `pack=False` or `fixed_shapes=False`"
            )


# Fields by the title of their group, in the order of the help and of `config.yaml`.
GROUPS = {vars(group)["TITLE"]: fields(group) for group in reversed(TrainConfig.__bases__)}


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
        # `validate_every` of the file would win over the flag.
        of_file.pop("validate_every", None)
    if "tgt" in of_flags and of_flags["tgt"] != of_file.get("tgt"):
        of_file.pop("score_tokenizer", None)
    _check_of_file({name: of_file[name] for name in of_file.keys() - of_flags.keys()}, file=file)
    return of_file | of_flags


def _check_of_file(values: Mapping[str, Any], *, file: Path) -> None:
    """Check the settings of a file each alone, so that an error names the file and no flag."""
    for item in fields(TrainConfig):
        try:
            check_setting(item, values.get(item.name))
        except UserError as error:
            message = str(error).replace(f"`{item.name}`", f"{item.name} in {file}")
            raise type(error)(message) from error


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
