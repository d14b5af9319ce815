"""The run whose vocabularies and weights another run starts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError
from gapless.nmt.data.languages import find_language
from gapless.nmt.run import checkpoints
from gapless.nmt.run.config import make_config
from gapless.nmt.run.folder import CONFIG, settings_file
from gapless.nmt.run.shell_name import shell_name
from gapless.nmt.run.task import Vocabs


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from gapless.nmt.run.config import TrainConfig


# What makes other weights, or other ids, of the same text.
_OF_WEIGHTS = (
    *("tokenizer", "vocab_size", "vocab_model", "shared_vocab", "share", "norm"),
    *("d_model", "heads", "ffn", "encoder_layers", "decoder_layers"),
)


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """What a run takes over from another.

    Attributes:
        path: checkpoint of the other run.
        config: of the other run.
        vocabs: of both.
        weights: by name, in host memory.
    """

    path: Path
    config: TrainConfig
    vocabs: Vocabs
    weights: Mapping[str, torch.Tensor]

    def settings(self) -> dict[str, Any]:
        """Return the settings that the weights and vocabularies belong to."""
        return {name: getattr(self.config, name) for name in _OF_WEIGHTS}

    def check(self, given: Mapping[str, Any]) -> None:
        """Check that no setting was given which the weights do not fit.

        Args:
            given: settings by name; those that are None were not given.

        Raises:
            UserError: one was.
        """
        for name, value in self.settings().items():
            if given.get(name) is not None and given[name] != value:
                # With its value, of which the command line makes a flag such as --no-shared-vocab.
                asked = f"`{name}={given[name]}`"
                raise UserError(
                    f"{asked} was given, but {self.path}, whose weights the run starts with, has "
                    f"`{name}={value}`; leave {asked} out"
                )

    def note_of_direction(self, config: TrainConfig) -> str | None:
        """Return a line if the other run was of other languages; None: it was not, or nobody can know.

        Args:
            config: of the run that starts with the weights, its language settled.
        """
        pairs = zip(_languages(self.config), _languages(config), strict=True)
        if all(before is None or now in (None, before) for before, now in pairs):
            return None
        return (
            f"{self.path}, whose vocabulary and weights the run starts with, is of {_direction(self.config)}, "
            f"and this text is of {_direction(config)}"
        )


def _languages(config: TrainConfig) -> list[str | None]:
    declared = config.tgt_language
    target = find_language(declared or config.tgt, is_declared=declared is not None)
    if config.is_language_open:
        target = None
    return [None if side is None else side.family for side in (find_language(config.src), target)]


def _direction(config: TrainConfig) -> str:
    language = None if config.is_language_open else config.tgt_language
    return f"{config.src} to {language or config.tgt}"


def read_first_weights(run_dir: Path) -> FirstWeights:
    """Read what a run takes over from another: its final model, or else its best.

    Args:
        run_dir: of the other run.

    Raises:
        RunFolderError: the folder is not a run, or holds neither, or it is damaged.
    """
    settings_file(run_dir)
    saved = checkpoints.read_saved(
        checkpoints.first_weights_path(run_dir), advice=_how_to_mend(run_dir)
    )
    config = make_config({}, file=saved.path / CONFIG)
    return FirstWeights(
        path=saved.path,
        config=config,
        vocabs=Vocabs.of_files(saved.files, is_shared=config.shared_vocab, where=saved.path),
        weights=checkpoints.weights_in(saved),
    )


def _how_to_mend(run_dir: Path) -> str:
    run = shell_name(run_dir)
    return f"gapless train `resume={run}` makes one at its end, or leave out `init_from`"
