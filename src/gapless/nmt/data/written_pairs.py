"""Write sentence pairs from Python to a file that `data` takes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import DISK, naming, sync_folder, temporary_path
from gapless.checkpoint.growing_file import GrowingFile
from gapless.checkpoint.store import make_parents
from gapless.errors import DataError
from gapless.nmt.data.sentences import CHUNK
from gapless.nmt.data.tables import check_sides, record_pairs


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.checkpoint.files import Disk


_ENDINGS = (".jsonl", ".jsonl.gz")

# Of zlib: a stream of gzip, which names no file and no time, so that equal pairs are equal files.
_GZIP = 16 + zlib.MAX_WBITS


def write_pairs(
    records: Iterable[Any],
    path: str | Path,
    *,
    src: str = "en",
    tgt: str = "zh",
    disk: Disk = DISK,
) -> int:
    """Write sentence pairs to a file of JSON lines, which `gapless train --data` takes.

    The records are read once, in their order, and not kept. The file has its name only when all of it is on
    the disk, instead of the one that is there, if there is one; after an error, of the records too, nothing
    half-written is left. Equal pairs give equal files.

    Args:
        records: any iterable, as a `datasets.Dataset` or `IterableDataset` is: dicts that have both sides, or
            have them under `translation`, or pairs of source and target.
        path: of the file, which ends in .jsonl or, packed, .jsonl.gz; its folder is made. Files train.jsonl,
            val.jsonl and test.jsonl of one folder are splits.
        src: source side, by code or name: a key of the records, found as one of a file is, and the key in this file.
        tgt: target side.
        disk: through which everything is written.

    Returns:
        How many pairs were written.

    Raises:
        DataError: a record that cannot be used, by its number from 1 on, or none; or the path ends otherwise.
        OSError: the disk is full or fails.
    """
    path = Path(path)
    if not path.name.casefold().endswith(_ENDINGS):
        raise DataError(
            f"{path} ends in {path.suffix!r}, expected {' or '.join(_ENDINGS)}; rename it"
        )
    check_sides(src, tgt)
    if isinstance(records, Mapping):
        raise DataError(
            f"`records` is a dict of {', '.join(map(repr, records))}, expected one record after the other; write each "
            "split to a file of its own"
        )
    pairs = record_pairs(records, src=src, tgt=tgt)
    temporary = temporary_path(path)
    make_parents(path.parent, disk)
    try:
        with GrowingFile(temporary, disk) as file:
            is_packed = path.name.casefold().endswith(".gz")
            num_pairs = _write(file, pairs, sides=(src, tgt), is_packed=is_packed)
        with naming(path):
            disk.rename(temporary, path)
        sync_folder(path.parent, disk=disk)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return num_pairs


def _write(
    file: GrowingFile, pairs: Iterator[tuple[str, str]], *, sides: tuple[str, str], is_packed: bool
) -> int:
    """Write all pairs and sync the file; return how many there are."""
    packer = zlib.compressobj(wbits=_GZIP) if is_packed else None
    num_pairs = 0
    while chunk := list(islice(pairs, CHUNK)):
        items = (dict(zip(sides, pair, strict=True)) for pair in chunk)
        text = "".join(f"{json.dumps(item, ensure_ascii=False)}\n" for item in items).encode()
        file.add(text if packer is None else packer.compress(text))
        num_pairs += len(chunk)
    if packer is not None:
        file.add(packer.flush())
    file.sync()
    return num_pairs
