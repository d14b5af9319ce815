"""A store of tokenised pairs: a folder that is written once, verified whenever it is opened, and read batch by batch.

It holds `header.json` (what text, vocabulary and filters it was made with, and counts), the token ids of each
side one after the other (`src.ids`, `tgt.ids`: 16 bits each, or 32 where a vocabulary needs them), where each
sentence begins (`src.starts`, `tgt.starts`: 64 bits), small files beside them, and the manifest of a checkpoint
with the size and hash of each. It has its name only when all of it is on the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gapless.checkpoint.files import (
    DISK,
    remove_tree,
    sync_folder,
    temporary_path,
    write_file,
)
from gapless.checkpoint.growing_file import GrowingFile
from gapless.checkpoint.lock import FolderLock
from gapless.checkpoint.manifest import (
    MANIFEST,
    Content,
    Manifest,
    read_manifest,
    read_verified,
    verify_file,
)
from gapless.checkpoint.store import make_parents, put_in_place
from gapless.errors import CheckpointError
from gapless.nmt.data.token_pairs import SIDES, Sentences, TokenPairs


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gapless.checkpoint.files import Disk


# Of the format; a store of another one is not read.
VERSION = 1

HEADER = "header.json"

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


@dataclass(frozen=True, kw_only=True)
class Store:
    """A store that was opened and verified.

    Attributes:
        path: its folder.
        header: what it was made with and counts.
        files: small files, by name.
        pairs: all of its pairs.
    """

    path: Path
    header: dict[str, Any]
    files: dict[str, bytes]
    pairs: TokenPairs


def read_header(path: Path) -> tuple[dict[str, Any], Manifest]:
    """Return the header of a store, and the list of its files.

    Raises:
        CheckpointError: one of them is missing or damaged.
    """
    manifest = read_manifest(path)
    if HEADER not in manifest.files:
        raise CheckpointError(f"{MANIFEST} lists no {HEADER}")
    header: dict[str, Any] = json.loads(read_verified(path, HEADER, manifest.files[HEADER]))
    return header, manifest


def read_store(path: Path) -> Store:
    """Return a store, every byte of which was verified.

    Raises:
        CheckpointError: it is damaged; the message says which file.
    """
    header, manifest = read_header(path)
    arrays = {f"{side}.{part}" for side in SIDES for part in ("ids", "starts")}
    files = {}
    for name, content in manifest.files.items():
        if name in arrays:
            verify_file(path, name, content)
        elif name != HEADER:
            files[name] = read_verified(path, name, content)
    return Store(
        path=path,
        header=header,
        files=files,
        pairs=_mapped(path, header["dtype"], checksum=header["checksum"]),
    )


def _mapped(path: Path, dtype: str, *, checksum: int | None = None) -> TokenPairs:
    src, tgt = (
        Sentences.mapped(path / f"{side}.ids", path / f"{side}.starts", dtype) for side in SIDES
    )
    return TokenPairs(src, tgt, checksum=checksum)


def write_store(
    path: Path,
    *,
    parts: Iterable[tuple[int, TokenPairs]],
    most_ids: int,
    header: Mapping[str, Any],
    files: Mapping[str, bytes],
    disk: Disk = DISK,
) -> None:
    """Write a store, instead of the one that is there, if there is one.

    What killed processes have left half-written beside it is removed.

    Args:
        path: its folder; the parent is made.
        parts: its pairs, some at a time, each with the number of the text that they are of.
        most_ids: different token ids of a side.
        header: that is written with counts and checksum.
        files: small files, by name.
        disk: through which everything is written.

    Raises:
        OSError: the disk is full or fails; nothing of it is left.
    """
    make_parents(path.parent, disk)
    temporary = temporary_path(path)
    with FolderLock(path.parent):
        _remove_leftovers(path.parent, disk)
        disk.make_folder(temporary)
        # Held while its writer lives.
        lock = FolderLock(temporary).__enter__()
    try:
        dtype = "uint16" if most_ids <= 1 << 16 else "uint32"
        contents, counts = _write_arrays(temporary, parts, dtype=dtype, disk=disk)
        checksum = _mapped(temporary, dtype).checksum()
        counted = {"version": VERSION, "dtype": dtype, "counts": counts, "checksum": checksum}
        for name, data in {HEADER: as_json({**header, **counted}), **files}.items():
            write_file(temporary / name, [memoryview(data)], disk=disk)
            contents[name] = Content.of([memoryview(data)])
        manifest = Manifest(name=path.name, step=0, files=contents)
        write_file(temporary / MANIFEST, [memoryview(manifest.as_bytes())], disk=disk)
        sync_folder(temporary, disk=disk)
        with FolderLock(path.parent):
            put_in_place(temporary, path, disk)
            sync_folder(path.parent, disk=disk)
    finally:
        lock.__exit__()
        # After an error all of it; else, if it took the place of another, that one.
        with suppress(OSError):
            remove_tree(temporary)


def as_json(value: object) -> bytes:
    """Return a value as the text of a file."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1).encode()


def _write_arrays(
    folder: Path, parts: Iterable[tuple[int, TokenPairs]], *, dtype: str, disk: Disk
) -> tuple[dict[str, Content], list[int]]:
    """Write the arrays; return what each file holds, and how many pairs are of each text."""
    counts: list[int] = []
    with ExitStack() as stack:
        files = {
            f"{side}.{part}": stack.enter_context(GrowingFile(folder / f"{side}.{part}", disk))
            for side in SIDES
            for part in ("ids", "starts")
        }
        ends = dict.fromkeys(SIDES, 0)
        for side in SIDES:
            files[f"{side}.starts"].add(np.zeros(1, dtype=np.int64).tobytes())
        for text, pairs in parts:
            counts += [0] * (text + 1 - len(counts))
            counts[text] += len(pairs)
            for side, sentences in zip(SIDES, (pairs.src, pairs.tgt), strict=True):
                files[f"{side}.ids"].add(sentences.ids.astype(dtype).tobytes())
                files[f"{side}.starts"].add((ends[side] + sentences.starts[1:]).tobytes())
                ends[side] += int(sentences.starts[-1])
        return {name: file.sync() for name, file in files.items()}, counts


def _remove_leftovers(folder: Path, disk: Disk) -> None:
    """Remove what writers left that are gone."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name) and path.is_dir() and not _is_locked(path):
            remove_tree(path, disk=disk)


def _is_locked(folder: Path) -> bool:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
