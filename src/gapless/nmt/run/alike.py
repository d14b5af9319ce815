"""Whether the ranks of a run were started alike: the same settings, text, libraries and processors."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless import __version__
from gapless.device.cpu import kernels_of_cpu
from gapless.errors import UserError
from gapless.nmt.data.corpus import files_of_text


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gapless.device.base import Device
    from gapless.ranks import Ranks


# On a CPU, kernels for other instructions round otherwise, so that weights of ranks would differ.
_PROCESSOR = "the processor"

# Of each end of a file. Rank 0 reads the text for all, so a difference between is none of the run's.
_COMPARED_BYTES = 1 << 20


def check_alike(ranks: Ranks, given: Mapping[str, Any], *, device: Device | None = None) -> None:
    """Check that all ranks were started with the same settings, text, libraries and processors.

    Args:
        ranks: of the run.
        given: what this one was started with, by name; None counts as not given.
        device: on which this rank computes; None: processors are not compared.

    Raises:
        UserError: on all ranks, with the first difference.

    Sync: With several ranks, blocks the host until all are here.
    """
    if ranks.world == 1:
        return
    described = _described(given)
    if device is not None and not device.is_accelerator:
        described[_PROCESSOR] = kernels_of_cpu()
    difference = first_difference(ranks.agree(described))
    if difference is not None:
        raise UserError(difference)


def first_difference(ranks: Sequence[Mapping[str, str]]) -> str | None:
    """Return a line about the first thing that a rank has otherwise than rank 0; None: there is none.

    Args:
        ranks: what each has, by name, as people are to read it.
    """
    first = ranks[0]
    for number, other in enumerate(ranks):
        for name in (*first, *(name for name in other if name not in first)):
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                return f"{name} is {here} on rank 0, but {there} on rank {number}; {_advice(name)}"
    return None


def _advice(name: str) -> str:
    if name == _PROCESSOR:
        return "take hosts of one kind, or set ATEN_CPU_CAPABILITY on all to the lowest of them"
    return "start all ranks with the same settings, text and libraries"


def _described(given: Mapping[str, Any]) -> dict[str, str]:
    settings = {
        f"`{name}`": repr(value) if isinstance(value, str) else str(value)
        for name, value in given.items()
        if value is not None
    }
    return {
        "gapless": __version__,
        "torch": str(torch.__version__),
        **settings,
        **_text_in(given.get("data")),
    }


def _text_in(data: str | Path | None) -> dict[str, str]:
    if data is None:
        return {}
    return {f"{file}, as text,": _content_of(file) for file in files_of_text(Path(data))}


def _content_of(path: Path) -> str:
    try:
        return _size_and_checksum(path)
    except OSError as error:
        # If no rank can read it, rank 0 refuses it in words of its own.
        return f"not readable ({error.strerror})"


def _size_and_checksum(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        checksum = zlib.crc32(file.read(_COMPARED_BYTES))
        if size > _COMPARED_BYTES:
            file.seek(max(_COMPARED_BYTES, size - _COMPARED_BYTES))
            checksum = zlib.crc32(file.read(), checksum)
    return f"{size:,} bytes (checksum {checksum:08x})"
