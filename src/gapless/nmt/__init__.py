"""The translation trainer: `Translator`, `write_pairs`, and names that other trainers know, as `StreamManager`.

`data` makes batches from parallel text, `model` is the Transformer, `settings` says what a run is asked to
do, `run_folder` is what it writes and reads again, `run` trains and translates.
Names are loaded when first used, so that `import gapless.nmt` is quick and needs torch alone;
`Translator` needs the extra `nmt`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.loop.train_loop import run_epoch as run_epoch
    from gapless.nmt.data.batch import Batch as Batch
    from gapless.nmt.data.written_pairs import write_pairs as write_pairs
    from gapless.nmt.model.decode_settings import Sampling as Sampling
    from gapless.nmt.model.loss import LossCompute as LossCompute
    from gapless.nmt.run.translator import Translator as Translator
    from gapless.nmt.stream_manager import StreamManager as StreamManager

_HOME = {
    "Batch": "gapless.nmt.data.batch",
    "LossCompute": "gapless.nmt.model.loss",
    "Sampling": "gapless.nmt.model.decode_settings",
    "StreamManager": "gapless.nmt.stream_manager",
    "Translator": "gapless.nmt.run.translator",
    "run_epoch": "gapless.loop.train_loop",
    "write_pairs": "gapless.nmt.data.written_pairs",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gapless.nmt' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"gapless.nmt.{name} needs {error.name}, which cannot be found; "
            'run pip install "gapless[nmt]"'
        ) from error


def __dir__() -> list[str]:
    return __all__
