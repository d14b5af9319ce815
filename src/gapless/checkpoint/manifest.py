"""What belongs to a checkpoint: the size and hash of every file, and of the list itself."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import PART_BYTES
from gapless.errors import CheckpointError


if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


MANIFEST = "manifest.json"

_FORMAT = 1
HASH_BYTES = 32
# Read at most, so that no more is ever written.
MOST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a file has to hold.

    Attributes:
        size: in bytes.
        blake2b: hash of its content, 64 hexadecimal digits.
    """

    size: int
    blake2b: str

    @classmethod
    def of(cls, parts: Iterable[memoryview]) -> Content:
        """Return the size and hash of some bytes, given in parts."""
        size, digest = 0, blake2b(digest_size=HASH_BYTES)
        for part in parts:
            size += len(part)
            digest.update(part)
        return cls(size=size, blake2b=digest.hexdigest())

    def difference(self, data: bytes) -> str | None:
        """Return how bytes differ from what they have to be; None if they do not."""
        if len(data) > self.size:
            return f"has more than the {self.size} bytes that were written"
        if len(data) < self.size:
            return f"has {len(data)} bytes, expected {self.size}"
        if Content.of([memoryview(data)]) != self:
            return "holds other bytes than were written"
        return None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The list of a checkpoint's files.

    Attributes:
        name: of the checkpoint's folder, so that a list from another checkpoint is noticed.
        step: of the state in it.
        files: by name.
    """

    name: str
    step: int
    files: dict[str, Content]

    def as_bytes(self) -> bytes:
        """Return the text of the file, its own hash included."""
        body = {"format": _FORMAT, **asdict(self)}
        text = json.dumps(body, sort_keys=True)
        own = Content.of([memoryview(text.encode())]).blake2b
        return f"{json.dumps({**body, 'blake2b': own}, sort_keys=True, indent=1)}\n".encode()


def read_manifest(folder: Path) -> Manifest:
    """Return the list of a checkpoint's files, verified.

    Raises:
        CheckpointError: it is missing or damaged, or belongs to another folder.
    """
    data = read_file(folder / MANIFEST, most=MOST_MANIFEST_BYTES)
    manifest = _parsed(data)
    # Every byte counts: what was parsed has to give the same file again.
    if manifest is None or manifest.as_bytes() != data:
        raise CheckpointError(f"{MANIFEST} holds other bytes than were written")
    if manifest.name != folder.name:
        raise CheckpointError(f"it is {manifest.name} under another name")
    return manifest


def read_verified(folder: Path, name: str, content: Content) -> bytes:
    """Return the bytes of a checkpoint's file.

    Raises:
        CheckpointError: they are not what the manifest says.
    """
    data = read_file(folder / name, most=content.size)
    difference = content.difference(data)
    if difference is not None:
        raise CheckpointError(f"{name} {difference}")
    return data


def verify_file(folder: Path, name: str, content: Content) -> None:
    """Check a file that is too large to be kept in memory.

    Raises:
        CheckpointError: its bytes are not what the manifest says.
    """
    path = folder / name
    try:
        size = path.stat().st_size
        if size != content.size:
            raise CheckpointError(f"{name} has {size} bytes, expected {content.size}")
        with path.open("rb") as file:
            parts = iter(lambda: memoryview(file.read(PART_BYTES)), b"")
            if Content.of(parts) != content:
                raise CheckpointError(f"{name} holds other bytes than were written")
    except FileNotFoundError:
        raise CheckpointError(f"{name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error


def read_file(path: Path, *, most: int) -> bytes:
    """Return the bytes of a file, no more than one beyond the most that it may have.

    Raises:
        CheckpointError: it is missing, is no file, or cannot be read.
    """
    try:
        # To open a named pipe waits for a writer, which may never come.
        if stat.S_ISFIFO(path.stat().st_mode):
            raise CheckpointError(f"{path.name} is no file")
        with path.open("rb") as file:
            # A size that is wrong asks for no more memory than the file has.
            return file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error


def _parsed(data: bytes) -> Manifest | None:
    try:
        found: dict[str, Any] = json.loads(data)
        manifest = Manifest(
            name=found["name"],
            step=found["step"],
            files={name: Content(**content) for name, content in found["files"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return manifest if _is_possible(manifest) else None


def _is_possible(manifest: Manifest) -> bool:
    numbers = [manifest.step, *(content.size for content in manifest.files.values())]
    return (
        type(manifest.name) is str
        and all(type(number) is int and number >= 0 for number in numbers)
        and all(type(content.blake2b) is str for content in manifest.files.values())
        and all(is_plain_name(name) for name in manifest.files)
    )


def is_plain_name(name: object) -> bool:
    """Return whether a name is that of a file inside a folder, and not of one elsewhere."""
    if type(name) is not str or name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    return not any("\ud800" <= sign <= "\udfff" for sign in name)
