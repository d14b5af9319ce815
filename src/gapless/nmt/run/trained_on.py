"""What a run was trained on, kept small: by it text that a run has seen is told from new text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from gapless.checkpoint.files import replace_file
from gapless.nmt.data.corpus import SEEN_SHARE, plain


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gapless.nmt.data.corpus import Corpus


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
    are_known = np.isin(_hashes(sources), known) | np.isin(_earlier_hashes(sources), known)
    return [n for n, is_known in enumerate(are_known) if is_known]


def notes_of_known(run_dir: Path, corpus: Corpus) -> tuple[str, ...]:
    """Return a line if many sources of the held-out splits are in the text that a run was trained with.

    What they share with the training text of the same corpus, the corpus itself tells.

    Args:
        run_dir: of the run, before it is trained on this corpus.
        corpus: that it, or one that starts with its weights, is to be trained on.
    """
    training = set(map(plain, corpus.train.src))
    told = []
    for name, pairs in (("validation", corpus.val), ("test", corpus.test)):
        known = find_trained_on(run_dir, pairs.src) or []
        others = [number for number in known if plain(pairs.src[number]) not in training]
        if are_many(len(others), of=len(pairs)):
            told.append(f"{len(known):,} of {len(pairs):,} {name} sources")
    if not told:
        return ()
    return (
        f"{' and '.join(told)} are in the text that {run_dir} was trained with, so their scores are not of new "
        "text; add validation and test files of new text",
    )


def are_many(count: int, *, of: int) -> bool:
    """Return whether so many sources are more than occur in any two texts, as training judges it."""
    return count > SEEN_SHARE * of


def mark_of_trained_on(run_dir: Path) -> str | None:
    """Return what tells the file of a run from another one; None: it has none."""
    path = run_dir / TRAINED_ON
    return path.read_bytes()[-_DIGEST_BYTES:].hex() if path.is_file() else None


def restore_trained_on(
    run_dir: Path,
    sources: Sequence[str],
    *,
    earlier: Path | None,
    mark: str | bool | None,
    is_unchanged: bool,
) -> str | None:
    """Write the file of a resumed run anew, where it is damaged or missing and surely the same.

    What cannot be told any more is not kept: to know a part would tell the rest from new text wrongly.

    Args:
        run_dir: of the run.
        sources: of the pairs that its batches are made of.
        earlier: folder of the run that its first weights are from; None: they were random.
        mark: of the file, as its newest state keeps it; earlier versions keep none, or that there is one.
        is_unchanged: whether the run had this text since it began; decides where there is no mark.

    Returns:
        A line on what became of a file that was there; None: it is whole, or there was none.

    Raises:
        OSError: the disk is full.
    """
    path, there = run_dir / TRAINED_ON, _read(run_dir)
    if there is not None and (not isinstance(mark, str) or mark == mark_of_trained_on(run_dir)):
        return None
    found = _rebuilt(sources, earlier=earlier, mark=mark, is_unchanged=is_unchanged)
    if there is not None and found is None:
        # A run that was killed had begun to train on more.
        return None
    was_there = bool(mark) or path.exists()
    _write(run_dir, found)
    if there is not None or not was_there:
        return None
    what = f"{path} is damaged or missing"
    if found is not None:
        return f"{what}; it is written anew from the training text, which is the same"
    return (
        f"{what}, and this text and the first weights do not say what it held; gapless evaluate cannot tell any "
        "more which text the run was trained with"
    )


def _rebuilt(
    sources: Sequence[str], *, earlier: Path | None, mark: str | bool | None, is_unchanged: bool
) -> NDArray[np.uint64] | None:
    """Return the hashes that a run had kept, None if they are not known."""
    before = np.empty(0, _HASH) if earlier is None else _read(earlier)
    if before is None:
        return None
    now = np.union1d(before, _hashes(sources))
    if not isinstance(mark, str):
        # The run that the first weights are from may have gone on since.
        return now if is_unchanged and earlier is None else None
    return next((one for one in (now, before) if _digest(_content(one)).hex() == mark), None)


def is_damaged(run_dir: Path) -> bool:
    """Return whether the file of a run is there, but is not what was written."""
    return (run_dir / TRAINED_ON).is_file() and _read(run_dir) is None


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
    return None if not is_damaged(run_dir) else f"{path}: holds other bytes than were written"


def _hashes(sources: Sequence[str]) -> NDArray[np.uint64]:
    return _hashes_of(map(plain, sources))


def _earlier_hashes(sources: Sequence[str]) -> NDArray[np.uint64]:
    """Return the hashes that runs of earlier versions kept, to which fewer near copies were alike."""
    return _hashes_of(text.strip().casefold() for text in sources)


def _hashes_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
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
    content = _content(hashes)
    replace_file(path, content + _digest(content))


def _content(hashes: NDArray[np.uint64]) -> bytes:
    return hashes.astype(_HASH).tobytes()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
