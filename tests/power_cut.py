"""Disks after a power cut: what a save may leave if the power fails at any of its operations.

`RecordedDisk` writes as `gapless.checkpoint.files.Disk` does and keeps the list of operations. A
`PowerCuts` gives, for a cut after each of them, the disks that may be found then: what was not
synced may be there or not, in any combination, and a write may be torn at every 4 KiB.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gapless.checkpoint.files import Disk


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


TEAR_BYTES = 4096

MAX_EXHAUSTIVE = 12


@dataclass(frozen=True, kw_only=True)
class Named:
    """A name in a folder was set or removed.

    Attributes:
        folder: number of the folder.
        changes: number of the file or folder by name; None: the name is gone.
    """

    folder: int
    changes: dict[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Written:
    """Bytes of a file were written, 4 KiB at most."""

    file: int
    at: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Synced:
    """A file, or the names in a folder, were synced."""

    number: int


Operation: TypeAlias = Named | Written | Synced

# A disk: the content of every file by its path, None for a folder.
Found: TypeAlias = dict[str, bytes | None]


@dataclass(kw_only=True)
class _Tree:
    """Files and folders by number; number 0 is the root."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> _Tree:
        return _Tree(
            folders={number: dict(names) for number, names in self.folders.items()},
            files={number: bytearray(data) for number, data in self.files.items()},
        )

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Named):
            names = self.folders[operation.folder]
            for name, number in operation.changes.items():
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number
        elif isinstance(operation, Written):
            data = self.files[operation.file]
            data.extend(bytes(max(0, operation.at - len(data))))
            data[operation.at : operation.at + len(operation.data)] = operation.data

    def found(self) -> Found:
        found: Found = {}
        todo = [(0, Path())]
        while todo:
            folder, path = todo.pop()
            for name, number in self.folders[folder].items():
                if number in self.files:
                    found[str(path / name)] = bytes(self.files[number])
                else:
                    found[str(path / name)] = None
                    todo.append((number, path / name))
        return found


class RecordedDisk(Disk):
    """A disk that keeps what is done to it.

    Args:
        root: folder in which everything happens; what is in it at first counts as synced.

    Attributes:
        operations: done so far, in order; writes are divided where they may be torn.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.operations: list[Operation] = []
        self._numbers = itertools.count(1)
        self.start = _Tree()
        self._now = _Tree()
        self._opened: dict[int, int] = {}
        self._read_in(root, 0)
        self.start = self._now.copy()

    def create(self, path: Path) -> int:
        """Make an empty file and open it."""
        file = super().create(path)
        number = next(self._numbers)
        self._now.files[number] = bytearray()
        self.start.files[number] = bytearray()
        self._opened[file] = number
        self._name(path.parent, {path.name: number})
        return file

    def write(self, file: int, data: memoryview) -> None:
        """Append bytes to a file."""
        super().write(file, data)
        number = self._opened[file]
        for start in range(0, len(data), TEAR_BYTES):
            part = bytes(data[start : start + TEAR_BYTES])
            self._do(Written(file=number, at=len(self._now.files[number]), data=part))

    def sync(self, file: int) -> None:
        """Sync a file."""
        self._do(Synced(number=self._opened[file]))

    def close(self, file: int) -> None:
        """Close a file."""
        super().close(file)
        del self._opened[file]

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        super().make_folder(path)
        number = next(self._numbers)
        self._now.folders[number] = {}
        self.start.folders[number] = {}
        self._name(path.parent, {path.name: number})

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder."""
        self._do(Synced(number=self._number(path)))

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name in the same folder."""
        number = self._number(old)
        super().rename(old, new)
        self._name(old.parent, {old.name: None, new.name: number})

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two names change places."""
        numbers = self._number(one), self._number(other)
        done = super().exchange(one, other)
        if done:
            self._name(one.parent, {one.name: numbers[1], other.name: numbers[0]})
        return done

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        super().unlink(path)
        self._name(path.parent, {path.name: None})

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        super().remove_folder(path)
        self._name(path.parent, {path.name: None})

    def _do(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._now.apply(operation)

    def _name(self, folder: Path, changes: dict[str, int | None]) -> None:
        self._do(Named(folder=self._number(folder), changes=changes))

    def _number(self, path: Path) -> int:
        number = 0
        for name in path.relative_to(self._root).parts:
            number = self._now.folders[number][name]
        return number

    def _read_in(self, folder: Path, number: int) -> None:
        for path in sorted(folder.iterdir()):
            child = next(self._numbers)
            self._now.folders[number][path.name] = child
            if path.is_dir():
                self._now.folders[child] = {}
                self._read_in(path, child)
            else:
                self._now.files[child] = bytearray(path.read_bytes())


class PowerCuts:
    """The disks that a power cut may leave, each once.

    Of few pending operations every combination is lost; of more none, all, each single one, and
    random combinations.

    Args:
        disk: on which something was saved.
        exhaustive: pending operations up to which every combination is lost.
        samples: random combinations for a cut with more pending operations.
        seed: of those.

    Attributes:
        num_cases: combinations checked so far; many leave the same disk.
    """

    def __init__(
        self,
        disk: RecordedDisk,
        *,
        exhaustive: int = MAX_EXHAUSTIVE,
        samples: int = 500,
        seed: int = 0,
    ) -> None:
        self._disk = disk
        self._exhaustive = exhaustive
        self._samples = samples
        self._random = random.Random(seed)
        self.num_cases = 0

    def __iter__(self) -> Iterator[Found]:
        seen = set()
        for end in range(len(self._disk.operations) + 1):
            done = self._disk.operations[:end]
            pending = _pending(done)
            for lost in self._losses(pending):
                self.num_cases += 1
                tree = self._disk.start.copy()
                for number, operation in enumerate(done):
                    if number not in lost:
                        tree.apply(operation)
                found = tree.found()
                key = hash(frozenset(found.items()))
                if key not in seen:
                    seen.add(key)
                    yield found

    def _losses(self, pending: list[int]) -> Iterable[frozenset[int]]:
        if len(pending) <= self._exhaustive:
            for size in range(len(pending) + 1):
                yield from map(frozenset, itertools.combinations(pending, size))
            return
        yield frozenset()
        yield frozenset(pending)
        for number in pending:
            yield frozenset([number])
        for _ in range(self._samples):
            yield frozenset(number for number in pending if self._random.random() < 0.5)


def _pending(done: list[Operation]) -> list[int]:
    """Return the numbers of the operations that were not synced."""
    pending = []
    synced: set[int] = set()
    for number in reversed(range(len(done))):
        operation = done[number]
        if isinstance(operation, Synced):
            synced.add(operation.number)
        elif (operation.folder if isinstance(operation, Named) else operation.file) not in synced:
            pending.append(number)
    return pending[::-1]


def put_back(found: Found, folder: Path) -> None:
    """Write a disk that a power cut left into an empty folder."""
    for name in sorted(found):
        path, content = folder / name, found[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
