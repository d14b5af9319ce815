"""What a run was trained on, kept small, so that text it has seen is not scored as new text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from gapless.checkpoint.files import replace_file
from gapless.nmt.data.corpus import SEEN_SHARE, plain


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gapless.nmt.data.corpus import Corpus


TRAINED_ON = "trained_on.bin"

# At the end of the file: the digest of all bytes before it.
_DIGEST_BYTES = 16

# Of several billion sentences, two have the same hash by chance about once.
_HASH = np.dtype("<u8")


def begin_trained_on(run_dir: Path, *, earlier: Path | None) -> None:
    """Keep what the initial weights of a new run were trained on, before it trains them itself.

    Where that is not known, nothing is kept: with a part of it, the rest would count as new text.

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
    are_known = np.isin(_hashes(sources), known)
    return [n for n, is_known in enumerate(are_known) if is_known]


def notes_of_known(run_dir: Path, corpus: Corpus) -> tuple[str, ...]:
    """Return a line if many sources of the held-out splits are in the text that a run was trained with.

    What they share with the training text of the same corpus, the corpus itself tells.

    Args:
        run_dir: of the run, before it is trained on this corpus.
        corpus: that it, or one that starts with its weights, is to be trained on.
    """
    training = set(map(plain, corpus.train.src))
    parts = []
    for name, pairs in (("validation", corpus.val), ("test", corpus.test)):
        known = find_trained_on(run_dir, pairs.src) or []
        others = [number for number in known if plain(pairs.src[number]) not in training]
        if are_many(len(others), of=len(pairs)):
            parts.append(f"{len(known):,} of {len(pairs):,} {name} sources")
    if not parts:
        return ()
    return (
        f"{' and '.join(parts)} are in the text that {run_dir} was trained with, so their scores are not of new "
        "text; add validation and test files of new text",
    )


def are_many(count: int, *, of: int) -> bool:
    """Return whether so many sources are more than occur in any two texts, as training judges it."""
    return count > SEEN_SHARE * of


def is_damaged(run_dir: Path) -> bool:
    """Return whether the file of a run is there, but is not what was written."""
    return (run_dir / TRAINED_ON).is_file() and _read(run_dir) is None


def _hashes(sources: Sequence[str]) -> NDArray[np.uint64]:
    digests = (hashlib.blake2b(plain(one).encode(), digest_size=8).digest() for one in sources)
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
