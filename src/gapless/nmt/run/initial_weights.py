"""The initial weights of a run that starts from another (`init_from`): what they are, and what must fit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError
from gapless.nmt.exchange.hugging_face import FILES, read_hugging_face
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.folder import read_model, settings_file
from gapless.nmt.settings.config import TrainConfig
from gapless.report.figures import shell_name


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from gapless.nmt.data.vocab import Vocabs


# What makes other weights, or other ids, of the same text.
_OF_WEIGHTS = (
    *("tokenizer", "vocab_size", "vocab_model", "shared_vocab", "tags", "share", "norm"),
    *("activation", "output_bias"),
    *("d_model", "heads", "ffn", "encoder_layers", "decoder_layers"),
)


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
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


def read_initial_weights(run_dir: Path) -> InitialWeights:
    """Read what a run takes over from another: its final model, or else its best.

    Args:
        run_dir: of the other run, or of a Marian model of Hugging Face transformers.

    Raises:
        UserError: the folder is neither, or holds no such model, or it is damaged.
    """
    if any((run_dir / name).is_file() for name in FILES):
        return _of_hugging_face(run_dir)
    settings_file(run_dir)
    path = checkpoints.trained_path(run_dir)
    advice = f"gapless train `resume={shell_name(run_dir)}` makes one at its end, or leave out `init_from`"
    config, vocabs, weights = read_model(path, advice=advice)
    return InitialWeights(
        path=path,
        config=config,
        vocabs=vocabs,
        weights=weights,
    )


def _of_hugging_face(folder: Path) -> InitialWeights:
    found = read_hugging_face(folder)
    return InitialWeights(
        path=folder,
        config=TrainConfig(init_from=str(folder), **found.settings),
        vocabs=found.vocabs,
        weights=found.weights,
    )
