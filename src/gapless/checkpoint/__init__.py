"""Durable checkpoints for any training loop: whole after a kill, a full disk or a power cut.

    CheckpointStore   saves tensors and plain values under a step's number, and loads the newest whole one
    RunLock           lets one process write to a folder, and dies with it
    pack, unpack      turn nested state, such as an optimizer's, into tensors and JSON, and back

`store.py` is what users call, `manifest.py` says what belongs to a checkpoint and checks it, `packed_state.py`
and `tensor_file.py` give state its form on disk, `files.py` is the layer through which every operation
on a file goes, and `lock.py` keeps a second writer out. No file holds pickled objects. Names are loaded
when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.checkpoint.lock import RunLock as RunLock
    from gapless.checkpoint.packed_state import pack as pack, unpack as unpack
    from gapless.checkpoint.store import (
        Checkpoint as Checkpoint,
        CheckpointStore as CheckpointStore,
        Listed as Listed,
    )
    from gapless.errors import (
        CheckpointError as CheckpointError,
        CheckpointWarning as CheckpointWarning,
        RunLockedError as RunLockedError,
    )

_HOME = {
    "Checkpoint": "gapless.checkpoint.store",
    "CheckpointError": "gapless.errors",
    "CheckpointStore": "gapless.checkpoint.store",
    "CheckpointWarning": "gapless.errors",
    "Listed": "gapless.checkpoint.store",
    "RunLock": "gapless.checkpoint.lock",
    "RunLockedError": "gapless.errors",
    "pack": "gapless.checkpoint.packed_state",
    "unpack": "gapless.checkpoint.packed_state",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gapless.checkpoint' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
