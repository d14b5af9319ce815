"""The stores of tokenised pairs in a folder: found by what they were made with, and the oldest removed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.store import remove_checkpoint
from gapless.errors import CheckpointError, UserError
from gapless.nmt.data.pair_store import Store, as_json, read_header, read_store, write_store


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.nmt.data.token_pairs import TokenPairs


# Nothing else in their folder is ever touched.
_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A store in a list.

    Attributes:
        path: its folder.
        text: the path of the text that it holds.
        num_pairs: that it holds.
        size: of its files, in bytes.
        problem: what is wrong with it, as far as sizes say; None if nothing is.
    """

    path: Path
    text: str
    num_pairs: int
    size: int
    problem: str | None


def default_folder() -> Path:
    """Return the folder of the stores of runs that name none, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gapless" / "stores"


@dataclass(kw_only=True)
class StoreFolder:
    """The stores in a folder.

    Attributes:
        path: of the folder, which need not be there.
        most_bytes: that all may have; the newest stays in any case.
        notes: lines about those that were damaged, and removed.
    """

    path: Path
    most_bytes: float = float("inf")
    notes: list[str] = field(default_factory=list)

    def find(self, wanted: Mapping[str, Any]) -> Store | None:
        """Return the newest whole store that was made with this; None if there is none.

        One that is damaged is removed, and noted.

        Args:
            wanted: that its header has to hold.
        """
        for path in self._paths():
            try:
                header, _ = read_header(path)
                if any(header.get(key) != value for key, value in wanted.items()):
                    continue
                store = read_store(path)
                os.utime(path)
            except (CheckpointError, OSError) as error:
                # Another process may have removed it meanwhile.
                if path.exists():
                    self.notes.append(f"the store {path} is damaged: {error}; it is made anew")
                    remove_checkpoint(path)
                continue
            return store
        return None

    def save(
        self,
        header: Mapping[str, Any],
        parts: Iterable[tuple[int, TokenPairs]],
        *,
        most_ids: int,
        files: Mapping[str, bytes],
    ) -> Store:
        """Make a store, and remove those that were used least lately, if all are too large.

        Args:
            header: what it is made with.
            parts: its pairs, some at a time, each with the number of the text that they are of.
            most_ids: different token ids of a side.
            files: small files that it holds.

        Raises:
            UserError: the folder cannot be written.
            OSError: the disk is full or fails; nothing of it is left.
        """
        path = self.path / blake2b(as_json(header), digest_size=8).hexdigest()
        there = next(
            place for place in (self.path, *self.path.absolute().parents) if place.exists()
        )
        if not there.is_dir():
            raise UserError(
                f"tokenised text cannot be kept in {self.path}, as {there} is a file; name a folder as `store`"
            )
        if not os.access(there, os.W_OK):
            raise UserError(
                f"tokenised text is kept in {self.path}, where nothing can be written; "
                "name another folder as `store`"
            )
        write_store(path, parts=parts, most_ids=most_ids, header=header, files=files)
        store, left = read_store(path), self.most_bytes
        for item in sorted(self.list(), key=lambda item: item.path != path):
            left -= item.size
            if left < 0 and item.path != path:
                remove_checkpoint(item.path)
        return store

    def list(self) -> Sequence[Listed]:
        """Return all stores, the one that was used last first; their arrays are not verified."""
        found = []
        for path in self._paths():
            # Another process may remove it meanwhile.
            with suppress(FileNotFoundError):
                found.append(_listed(path))
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Remove stores.

        Args:
            names: of their folders.

        Raises:
            UserError: there is none of a name; nothing is removed then.
        """
        found = {path.name: path for path in self._paths()}
        names = set(names)
        if missing := sorted(names - found.keys()):
            raise UserError(
                f"{self.path} holds no store {', '.join(missing)}; `gapless store list` names those that are there"
            )
        for name in names:
            remove_checkpoint(found[name])

    def _paths(self) -> Sequence[Path]:
        """Return the folders of all stores, the one that was used last first."""
        if not self.path.is_dir():
            return []
        used = {}
        for path in self.path.iterdir():
            if _NAME.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    used[path] = path.stat().st_mtime_ns
        return sorted(used, key=lambda path: (-used[path], path.name))


def _listed(path: Path) -> Listed:
    problem, header = None, dict[str, Any]()
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    try:
        header, manifest = read_header(path)
        for name, content in manifest.files.items():
            if sizes.get(name) != content.size:
                problem = f"{name} has {sizes.get(name, 0)} bytes, expected {content.size}"
    except CheckpointError as error:
        problem = str(error)
    return Listed(
        path=path,
        text=header.get("name", ""),
        num_pairs=sum(header.get("counts", [])),
        size=sum(sizes.values()),
        problem=problem,
    )
