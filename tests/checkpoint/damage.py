"""What can become of a folder of files: flipped bits, lost ends, lost, foreign and swapped files."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Damage:
    """One thing that happens to a folder.

    Attributes:
        name: for a person, and the same in every run.
        file: that it happens to, relative to the folder.
        apply: does it; takes the folder.
    """

    name: str
    file: str
    apply: Callable[[Path], None]

    def __str__(self):
        return self.name


def flip(path, at, bit):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(bytes(content))


def truncate(path, size):
    """Cut a file off."""
    path.write_bytes(path.read_bytes()[:size])


def remove(path):
    """Remove a file or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def swap(one, other):
    """Let two files have each other's content."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def replace_by_folder(path):
    """Let a folder stand where a file was."""
    path.unlink()
    path.mkdir()


def replace_by_lost_link(path):
    """Let a link to nothing stand where a file was."""
    path.unlink()
    path.symlink_to("nowhere")


def replace_by_loop(path):
    """Let a link to itself stand where a file was."""
    path.unlink()
    path.symlink_to(path.name)


def fill_with_zeros(path):
    """Let a file have its size and no content: what some file systems leave after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


def zero_last_page(path):
    """Let the last 4 KiB of a file be zeros."""
    content = path.read_bytes()
    kept = max(0, len(content) - 1) // 4096 * 4096
    path.write_bytes(content[:kept] + bytes(len(content) - kept))


def files_in(folder):
    """Return the names of all files of a folder, in order."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def flips_of(folder: Path, name: str, *, count: int = 3) -> Iterator[Damage]:
    """Yield flips of single bits, from the first byte of a file to the last."""
    size = (folder / name).stat().st_size
    places = sorted({round(n * (size - 1) / max(1, count - 1)) for n in range(count)})
    for number, at in enumerate(places if size else []):
        bit = (5 * number) % 8
        yield Damage(
            f"{name}: bit {bit} of byte {at} of {size} flipped",
            name,
            lambda root, at=at, bit=bit: flip(root / name, at, bit),
        )


def cuts_of(folder: Path, name: str) -> Iterator[Damage]:
    """Yield truncations of a file, and a byte too many."""
    size = (folder / name).stat().st_size
    for kept in sorted({0, 1, size // 2, size // 4096 * 4096, size - 1} - {size}):
        if kept >= 0:
            yield Damage(
                f"{name}: cut to {kept} of {size} bytes",
                name,
                lambda root, kept=kept: truncate(root / name, kept),
            )
    for more in (b"\0", b"\n", b" "):
        yield Damage(
            f"{name}: {more!r} after its end",
            name,
            lambda root, more=more: (root / name).write_bytes((root / name).read_bytes() + more),
        )


REPLACEMENTS = {
    "deleted": remove,
    "replaced by a folder": replace_by_folder,
    "replaced by a link to nothing": replace_by_lost_link,
    "replaced by a link to itself": replace_by_loop,
    "filled with zeros": fill_with_zeros,
    "with zeros for its last page": zero_last_page,
}


def replacements_of(folder: Path, name: str) -> Iterator[Damage]:
    """Yield deletions of a file, and what may stand in its place."""
    for what, do in REPLACEMENTS.items():
        if (folder / name).stat().st_size or "zeros" not in what:
            yield Damage(f"{name}: {what}", name, lambda root, do=do: do(root / name))


def swaps_in(folder: Path) -> Iterator[Damage]:
    """Yield swaps of two files of different contents."""
    for one, other in itertools.combinations(files_in(folder), 2):
        if (folder / one).read_bytes() != (folder / other).read_bytes():
            yield Damage(
                f"{one} and {other}: swapped",
                one,
                lambda root, one=one, other=other: swap(root / one, root / other),
            )


def damages_of(folder: Path, *, flips: int = 3) -> Iterator[Damage]:
    """Yield every kind of damage to every file of a folder, as it is now."""
    for name in files_in(folder):
        yield from flips_of(folder, name, count=flips)
        yield from cuts_of(folder, name)
        yield from replacements_of(folder, name)
    yield from swaps_in(folder)
