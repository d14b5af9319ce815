"""What a run was trained on, kept small: by it text that a run has seen is told from new text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from gapless.checkpoint.files import replace_file
from gapless.nmt.data.corpus import _SEEN_SHARE, plain


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


TRAINED_ON = "trained_on.bin"

# At the end of the file, of what stands before.
_DIGEST_BYTES = 16

# Of several billion sentences, two have the same hash by chance about once.
_HASH = np.dtype("<u8")


def begin_trained_on(run_dir: Path, *, earlier: Path | None) -> None:
    """Keep what the first weights of a new run were trained on, before it trains them itself.

    Where that is not known, nothing is kept: to know a part would tell the rest from new text wrongly.

    Args:
        run_dir: of the run.
        earlier: folder of the run that the weights are from; None: they are random.

    Raises:
        OSError: the disk is full.
    """
    known = np.empty(0, _HASH) if earlier is None else _read(earlier)
    _write(run_dir, known)


def add_trained_on(run_dir: Path, sources: Sequence[str]) -> None:
    """Keep hashes of the sources that a run is trained on from now on, beside those before.

    Args:
        run_dir: of the run.
        sources: of the pairs that its batches are made of.

    Raises:
        OSError: the disk is full.
    """
    before = _read(run_dir)
    _write(run_dir, None if before is None else np.union1d(before, _hashes(sources)))


def find_trained_on(run_dir: Path, sources: Sequence[str]) -> list[int] | None:
    """Return which sources are in the text that a run was trained with; None: it does not say.

    Args:
        run_dir: of the run.
        sources: sentences, of which equal ones count each.

    Returns:
        Their numbers, counted from 0.
    """
    known = _read(run_dir)
    if known is None:
        return None
    return [n for n, is_known in enumerate(np.isin(_hashes(sources), known)) if is_known]


def are_many(count: int, *, of: int) -> bool:
    """Return whether so many sources are more than occur in any two texts, as training judges it."""
    return count > _SEEN_SHARE * of


def keeps_trained_on(run_dir: Path) -> bool:
    """Return whether a run keeps what it was trained on."""
    return (run_dir / TRAINED_ON).is_file()


def damage_of_trained_on(run_dir: Path, *, was_kept: bool) -> str | None:
    """Return a line if what a run keeps of its training text is missing or damaged.

    Args:
        run_dir: of the run.
        was_kept: whether its newest state says that it is there.
    """
    path = run_dir / TRAINED_ON
    if not path.is_file():
        lost = "is missing; gapless evaluate cannot tell text that the run was trained on"
        return f"{path} {lost}" if was_kept else None
    return None if _read(run_dir) is not None else f"{path}: holds other bytes than were written"


def _hashes(sources: Sequence[str]) -> NDArray[np.uint64]:
    digests = (hashlib.blake2b(plain(text).encode(), digest_size=8).digest() for text in sources)
    return np.frombuffer(b"".join(digests), _HASH)


def _read(run_dir: Path) -> NDArray[np.uint64] | None:
    path = run_dir / TRAINED_ON
    if not path.is_file():
        return None
    raw = path.read_bytes()
    content = raw[:-_DIGEST_BYTES]
    return np.frombuffer(content, _HASH) if raw[-_DIGEST_BYTES:] == _digest(content) else None


def _write(run_dir: Path, hashes: NDArray[np.uint64] | None) -> None:
    """Write hashes, 8 bytes each; None: nobody knows them, so that there is no file."""
    path = run_dir / TRAINED_ON
    if hashes is None:
        path.unlink(missing_ok=True)
        return
    content = hashes.astype(_HASH).tobytes()
    replace_file(path, content + _digest(content))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
