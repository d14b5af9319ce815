"""Checkpoints of a loop: saved so that they are whole or not there, and verified before use."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import (
    DISK,
    naming,
    remove_tree,
    sync_folder,
    temporary_path,
    write_anew_if_not_synced,
    write_file,
)
from gapless.checkpoint.lock import FolderLock
from gapless.checkpoint.manifest import (
    MANIFEST,
    MOST_MANIFEST_BYTES,
    Content,
    Manifest,
    is_plain_name,
    read_manifest,
    read_verified,
)
from gapless.checkpoint.tensor_file import read_tensors, tensor_parts
from gapless.errors import CheckpointError, CheckpointWarning, UserError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from gapless.checkpoint.files import Disk


TENSORS = "tensors.safetensors"
META = "meta.json"

_STEP = re.compile(r"step-(\d{9,})")
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified.

    Attributes:
        step: under which it was saved.
        tensors: by name, on the host.
        meta: what was saved beside them.
        files: further files, by name.
        path: its folder.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    path: Path


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A checkpoint in a list.

    Attributes:
        step: under which it was saved.
        path: its folder.
        size: of its files, in bytes.
        problem: what is wrong with it; None if it is whole.
    """

    step: int
    path: Path
    size: int
    problem: str | None


class CheckpointStore:
    """Saves the state of a loop under the number of its step, and loads the newest whole one.

    A checkpoint is a folder such as `step-000000200`: the tensors as safetensors, the rest as JSON,
    and a manifest with the size and blake2b hash of each file and of itself. It is written under a
    temporary name, every file and the folder are synced to the disk, then it is renamed and the
    parent synced. So a kill or a power cut leaves the checkpoints that were there, and the new one
    whole or not at all. Processes that save into one folder take turns; to keep a second one out of
    a run, use `gapless.checkpoint.RunLock`.

    Args:
        folder: of the checkpoints; made by the first save.
        keep: how many stay; a save removes older ones when the new one is on the disk.
        goes_back: whether a save may remove later checkpoints that this store has not seen.
        disk: through which everything is written; tests give one that loses writes.

    Raises:
        UserError: `keep` is no whole number of 1 or more.

    Example:
        store = CheckpointStore("runs/mine", keep=3)
        store.save(step, *pack({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
        found = store.load_newest()
        state = unpack(found.tensors, found.meta)
    """

    def __init__(
        self, folder: Path | str, keep: int = 3, *, goes_back: bool = False, disk: Disk = DISK
    ) -> None:
        if type(keep) is not int or keep < 1:
            raise UserError(f"`keep` must be a whole number of 1 or more, but is {keep!r}")
        self.folder = Path(folder)
        self._keep = keep
        self._goes_back = goes_back
        self._seen: set[int] = set()
        self._disk = disk

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        meta: dict[str, Any],
        *,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Save a checkpoint, then remove what is no longer needed.

        Removed are older ones beyond `keep`, and later ones than this that were there when this store
        loaded, or that it saved: a loop that went back has left them behind.

        Args:
            step: of the loop, such as the number of updates done.
            tensors: by name; those on a device are copied.
            meta: values that JSON can hold; `pack` makes them of other state.
            files: further files to keep beside them, by name.

        Returns:
            Its folder, when everything is on the disk.

        Raises:
            OSError: the disk is full or fails; nothing of the new checkpoint is left, and older
                ones are as they were.
            CheckpointError: something cannot be saved; or the folder holds a whole later checkpoint
                that this store has not seen, such as one of another run. Nothing is written then.
            UserError: the step is no whole number of 0 or more.

        Sync: Blocks the host until everything is written, and while tensors on a device are copied.
        """
        path = self.path_of(step)
        removable = self._removable_later(step)
        write_checkpoint(path, step=step, tensors=tensors, meta=meta, files=files, disk=self._disk)
        with FolderLock(self.folder):
            steps = sorted(self._steps())
            # Another process may have saved one in between: that one stays.
            later = [other for other in steps if other in removable]
            old = [other for other in steps if other <= step][: -self._keep]
            for other in (*later, *old):
                remove_checkpoint(self.path_of(other), disk=self._disk)
        self._seen.add(step)
        return path

    def _removable_later(self, step: int) -> set[int]:
        """Return the later steps that a save may remove: those that were seen, or are damaged."""
        later = {other for other in self._steps() if other > step}
        if self._goes_back:
            return later
        for other in sorted(later - self._seen, reverse=True):
            path = self.path_of(other)
            if list_checkpoint(path, step=other).problem is None:
                raise CheckpointError(
                    f"{path} is later than step {step} and not of this loop; call `load_newest` to "
                    "go on from it, or save to another folder"
                )
        return later

    def load_newest(
        self, *, on_damaged: Callable[[str], object] | None = None
    ) -> Checkpoint | None:
        """Return the newest whole checkpoint, None if there are none at all.

        Args:
            on_damaged: is called with a line for each newer one that is damaged; by default it is
                a CheckpointWarning.

        Raises:
            CheckpointError: there are some, but none is whole.
            OSError: the folder cannot be read.

        Sync: Does not block the host on the device.
        """
        found, problems = self._newest()
        self._seen |= set(self._steps())
        if found is None:
            if problems:
                raise CheckpointError(
                    f"no checkpoint in {self.folder} is whole: {'; '.join(problems)}"
                )
            return None
        for problem in problems:
            line = f"{problem}; going on with {found.path.name} instead"
            if on_damaged is None:
                warnings.warn(line, CheckpointWarning, stacklevel=2)
            else:
                on_damaged(line)
        return found

    def _newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest whole checkpoint, and what is wrong with those after it."""
        problems: list[str] = []
        before = self._folders()
        for step in sorted(before, reverse=True):
            try:
                return read_checkpoint(self.path_of(step)), problems
            except CheckpointError as error:
                # A writer may have removed or replaced it in between.
                if self._folders() != before:
                    return self._newest()
                problems.append(str(error))
        return None, problems

    def _folders(self) -> dict[int, int]:
        """Return the inode of each checkpoint's folder by its step."""
        inodes = {step: _inode(self.path_of(step)) for step in self._steps()}
        return {step: inode for step, inode in inodes.items() if inode is not None}

    def list(self) -> Sequence[Listed]:
        """Return all checkpoints, newest last, each verified.

        Raises:
            OSError: the folder cannot be read.
        """
        listed = [list_checkpoint(self.path_of(step), step=step) for step in sorted(self._steps())]
        # A writer may have removed some in between.
        return [item for item in listed if _inode(item.path) is not None]

    def paths(self) -> Sequence[Path]:
        """Return the folders of all checkpoints, newest last, whole or not.

        Raises:
            OSError: the folder cannot be read.
        """
        return [self.path_of(step) for step in sorted(self._steps())]

    def path_of(self, step: int) -> Path:
        """Return the folder of a step's checkpoint.

        Raises:
            UserError: the step is no whole number of 0 or more.
        """
        if type(step) is not int or step < 0:
            raise UserError(f"`step` must be a whole number of 0 or more, but is {step!r}")
        return self.folder / f"step-{step:09d}"

    def _steps(self) -> Iterator[int]:
        if not self.folder.exists():
            return
        for path in self.folder.iterdir():
            found = _STEP.fullmatch(path.name)
            # A name with more zeros than it needs is none of ours.
            if found and self.path_of(int(found[1])).name == path.name:
                yield int(found[1])


# --- one checkpoint ---


def write_checkpoint(
    path: Path,
    *,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    meta: dict[str, Any],
    files: Mapping[str, bytes] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a checkpoint, instead of the one that is there, if there is one.

    What killed processes have left half-written beside it is removed.

    Args:
        path: its folder; the parent is made.
        step: of the state in it.
        tensors: by name.
        meta: values that JSON can hold.
        files: further files, by name.
        disk: through which everything is written.

    Raises:
        OSError: the disk is full or fails; nothing of it is left.
        CheckpointError: something cannot be saved.

    Sync: Blocks the host until everything is written, and while tensors on a device are copied.
    """
    contents = {
        TENSORS: tensor_parts(tensors),
        META: [memoryview(_as_json(meta))],
        **{name: [_further_file(name, data)] for name, data in (files or {}).items()},
    }
    make_parents(path.parent, disk)
    with FolderLock(path.parent):
        _remove_leftovers(path.parent, disk)
        _write_whole(path, contents, step=step, disk=disk)


def _write_whole(
    path: Path, contents: Mapping[str, Sequence[memoryview]], *, step: int, disk: Disk
) -> None:
    temporary = temporary_path(path)

    def write() -> None:
        remove_tree(temporary, disk=disk)
        disk.make_folder(temporary)
        _write_files(temporary, contents, name=path.name, step=step, disk=disk)
        sync_folder(temporary, disk=disk)
        put_in_place(temporary, path, disk)
        sync_folder(path.parent, disk=disk)

    try:
        with naming(path):
            write_anew_if_not_synced(write)
    except BaseException:
        _remove_quietly(temporary)
        raise
    # If it took the place of another, that one has the temporary name now.
    remove_tree(temporary, disk=disk)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint; every file is verified before anything is used.

    One that a writer replaces during the read is read again.

    Raises:
        CheckpointError: it is missing or damaged; the message names it and what is wrong.

    Sync: Does not block the host on the device.
    """
    before = _inode(path)
    try:
        return _read(path)
    except CheckpointError as error:
        if _inode(path) != before:
            return read_checkpoint(path)
        if before is None:
            raise CheckpointError(f"{path} does not exist") from error
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> Checkpoint:
    manifest = _complete_manifest(path)
    data = {name: read_verified(path, name, content) for name, content in manifest.files.items()}
    tensors = read_tensors(data.pop(TENSORS))
    try:
        meta = json.loads(data.pop(META))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{META} is no JSON that can be read: {error}") from error
    return Checkpoint(step=manifest.step, tensors=tensors, meta=meta, files=data, path=path)


def list_checkpoint(path: Path, *, step: int = 0) -> Listed:
    """Return what is to be said of a checkpoint, verified; one that is replaced is read again.

    Args:
        path: its folder.
        step: that it says of itself, where its manifest cannot say it.
    """
    before = _inode(path)
    problem = None
    try:
        manifest = _complete_manifest(path)
        step = manifest.step
        for name, content in manifest.files.items():
            read_verified(path, name, content)
    except CheckpointError as error:
        if _inode(path) != before:
            return list_checkpoint(path, step=step)
        problem = str(error)
    return Listed(step=step, path=path, size=_size(path), problem=problem)


def _inode(path: Path) -> int | None:
    """Return the identity of a folder, which a later one of its name does not have; None if there is none."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    size = 0
    with suppress(FileNotFoundError, NotADirectoryError):
        for file in path.iterdir():
            size += file.lstat().st_size
    return size


def remove_checkpoint(path: Path, *, disk: Disk = DISK) -> None:
    """Remove a checkpoint, so that no reader sees half of it; nothing happens if it is not there.

    Raises:
        OSError: it cannot be removed.
    """
    if _inode(path) is not None:
        temporary = temporary_path(path)
        with naming(path):
            remove_tree(temporary, disk=disk)
            disk.rename(path, temporary)
            sync_folder(path.parent, disk=disk)
            remove_tree(temporary, disk=disk)


def _as_json(meta: object) -> bytes:
    # What comes back has to be what was saved: JSON turns keys into text, and tuples into lists.
    try:
        if type(meta) is not dict or not _is_json(meta):
            raise CheckpointError(
                "`meta` has to be a dictionary of text, numbers, lists, and dictionaries with text as "
                "keys; `pack` divides other state into tensors and JSON"
            )
        return json.dumps(meta, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"`meta` holds text that is no Unicode: {error.object!a}") from error
    except RecursionError as error:
        raise CheckpointError(
            "`meta` holds itself, or is nested too deeply to be saved"
        ) from error
    except ValueError as error:
        # Python neither writes nor reads a whole number of more digits than its limit.
        raise CheckpointError(f"`meta` holds a number that cannot be saved: {error}") from error


def _further_file(name: object, data: bytes) -> memoryview:
    if not is_plain_name(name) or name in (TENSORS, META, MANIFEST):
        raise CheckpointError(
            f"{name!a} cannot be the name of a further file; give a name without a folder, other "
            f"than {TENSORS}, {META} and {MANIFEST}"
        )
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        type_ = type(data)
        raise CheckpointError(
            f"the further file {name!r} is a {type_.__module__}.{type_.__qualname__}, expected bytes"
        ) from error


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, float, str)


def _complete_manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    if not {TENSORS, META} <= manifest.files.keys():
        raise CheckpointError(f"{MANIFEST} lists no {TENSORS} or no {META}")
    return manifest


def _write_files(
    folder: Path,
    contents: Mapping[str, Sequence[memoryview]],
    *,
    name: str,
    step: int,
    disk: Disk,
) -> None:
    for file, parts in contents.items():
        write_file(folder / file, parts, disk=disk)
    manifest = Manifest(
        name=name,
        step=step,
        files={file: Content.of(parts) for file, parts in contents.items()},
    )
    text = manifest.as_bytes()
    if len(text) > MOST_MANIFEST_BYTES:
        raise CheckpointError(
            f"{len(contents):,} files are too many for a checkpoint; put them together"
        )
    write_file(folder / MANIFEST, [memoryview(text)], disk=disk)


def put_in_place(temporary: Path, path: Path, disk: Disk) -> None:
    """Give a folder its name; if another has it, that one has the temporary name then, or is removed."""
    # A link that leads nowhere is there too.
    if _inode(path) is None:
        disk.rename(temporary, path)
    elif not disk.exchange(temporary, path):
        # For a moment there is neither; other checkpoints are as they were.
        aside = temporary_path(path.with_name(f"{path.name}.old"))
        disk.rename(path, aside)
        disk.rename(temporary, path)
        sync_folder(path.parent, disk=disk)
        remove_tree(aside, disk=disk)


def make_parents(folder: Path, disk: Disk) -> None:
    """Make a folder and those that it lies in, as far as they are missing."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        # Another process may make it as well.
        with naming(parent), suppress(FileExistsError):
            disk.make_folder(parent)
            sync_folder(parent.parent, disk=disk)


def _remove_leftovers(folder: Path, disk: Disk) -> None:
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name) and path.is_dir():
            remove_tree(path, disk=disk)


def _remove_quietly(folder: Path) -> None:
    """Remove what was written before a failure, which is what the user has to see."""
    try:
        remove_tree(folder)
    except OSError:
        return
