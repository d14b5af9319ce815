"""COMET, which scores translations by a neural model that is on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Comet:
    """A COMET model.

    Args:
        path: of its checkpoint, or of the folder that a download leaves, with `checkpoints/model.ckpt`.
        uses_gpu: whether it computes there.

    Raises:
        UserError: the package or the model is missing.
    """

    def __init__(self, path: Path, *, uses_gpu: bool) -> None:
        try:
            module = import_module("comet")
        except ModuleNotFoundError as error:
            raise UserError(
                f"COMET needs {error.name}, which cannot be found; run pip install "
                '"gapless[comet]", and name a model that was downloaded'
            ) from error
        file = path / "checkpoints" / "model.ckpt" if path.is_dir() else path
        if not file.is_file():
            raise UserError(
                f"{file} does not exist, expected the checkpoint of a COMET model; download one first"
            )
        self._gpus = int(uses_gpu)
        self._model: Any = module.load_from_checkpoint(str(file))

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> float:
        """Return the score of all translations together."""
        rows = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
        ]
        found = self._model.predict(rows, batch_size=32, gpus=self._gpus, progress_bar=False)
        return float(found.system_score)
