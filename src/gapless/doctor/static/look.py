"""Look at files without running them, for lines that would make the host wait for a GPU.

A comment allows a wait: `# gapless: allow(reason)`.
"""

from __future__ import annotations

import ast
import io
import logging
import os
import re
import tokenize
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gapless.device.instruments.processor import num_cores
from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.finding_texts import cause_text, mend_text
from gapless.doctor.advice.own_mends import Places
from gapless.doctor.static.parts import outlines_of, parts_of
from gapless.doctor.static.statements import waits_of
from gapless.records.finding import Finding, Site, by_part
from gapless.unnoticed import FilterInFront, no_line_warns_anew


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.static.parts import Outline
    from gapless.records.finding import Part


# A file in which none of these stands holds no tensor, unless a module beside it makes them.
_WORDS = re.compile(r"torch|lightning|transformers|accelerate|\.item\(\)|\.cpu\(\)")
_NAMES_A_DEVICE = re.compile(r"cuda|device|gpu|accelerat|fabric|lightning|\.to\(", re.IGNORECASE)
_MAKES_ON_DEVICE = re.compile(r"\bset_default_(device|tensor_type)\(")
_IMPORTED = re.compile(r"^\s*(?:from|import)\s+\.*(\w+)", re.MULTILINE)
_ALLOWANCE = re.compile(r"#\s*gapless:\s*allow\(\s*[^)\s][^)]*\)")
_SAVING = ("torch.save", "Module.state_dict", "pickle.dump")
# Who switches the collector off does what it does by plan.
_COLLECTS_ITSELF = re.compile(r"\bgc\.(disable|freeze)\(\)")
# What tests do, they do once.
_NAMED_A_TEST = re.compile(r"(test_.*|.*_test|conftest)\.py")
_TESTS = re.compile(r"\b(def test_|unittest|pytest)")  # or it is a script
_SKIPPED_FOLDERS = frozenset(
    "__pycache__ node_modules site-packages build dist tests test testing test_utils".split()  # noqa: SIM905
)
# Below so many bytes of source a second process costs more than it saves.
_WORTH_A_PROCESS_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class StaticLook:
    """What a look at files has found.

    Attributes:
        findings: by part of the program, the training step first, then by certainty, file and line.
        unread: files that could not be looked at, with the reason, one sentence each.
        num_files: that were looked at.
    """

    findings: tuple[Finding, ...]
    unread: tuple[str, ...]
    num_files: int


@dataclass(frozen=True, kw_only=True)
class _FileLook:
    """What was found in one file; `unread` says why it could not be looked at."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)
    names_a_device: bool = False
    goes_backward: bool = False
    unread: str = ""


def read_program(
    paths: Iterable[Path],
) -> tuple[dict[tuple[str, int], Part], dict[str, Places]]:
    """Return the part of the program of each line of files, and what is around lines, by file.

    A file that cannot be read is left out.
    """
    outlines, places = {}, {}
    for path in paths:
        with suppress(OSError, UnicodeError, LookupError, SyntaxError, ValueError, RecursionError):
            tree = _parsed(_read(path))
            outlines[_shown(path)] = outlines_of(tree)
            places[_shown(path)] = Places(tree)
    lines = [(path, line) for path, its in outlines.items() for line in its[-1].lines]
    return parts_of(outlines, lines), places


def look_at(paths: Iterable[Path], *, may_share: bool = True) -> StaticLook:
    """Look at files, and at the Python files below folders.

    A file that cannot be read or does not parse is named in `unread`; the others are looked at.

    Args:
        paths: of files and folders.
        may_share: whether several processes may share many files.
    """
    files = python_files(paths)
    sizes = sum(file.stat().st_size for file in files if file.exists())
    processes = min(num_cores(), 1 + sizes // _WORTH_A_PROCESS_BYTES) if may_share else 1
    if processes > 1:
        # Imported here: it cannot be where a program has ended.
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(processes) as pool:
            looks = list(pool.map(_look_at_file, files, chunksize=8))
    else:
        looks = [_look_at_file(file) for file in files]
    return StaticLook(
        findings=tuple(_in_order(looks)),
        unread=tuple(one.unread for one in looks if one.unread),
        num_files=sum(not one.unread for one in looks),
    )


def _in_order(looks: Sequence[_FileLook]) -> list[Finding]:
    """Return all findings with their parts, the training step first; what is sure before what may be."""
    # Without a device in any file, what goes backward trains on the host.
    on_a_device = any(one.names_a_device for one in looks)
    found = [
        (one, one.site)
        for look in looks
        for one in look.findings
        if one.site and (on_a_device or not look.goes_backward)
    ]
    outlines = {look.path: look.outlines for look in looks}
    parts = parts_of(outlines, [(site.path, site.line) for _, site in found])
    placed = [
        replace(one, part="saving" if one.call in _SAVING else parts[site.path, site.line])
        for one, site in found
    ]
    return by_part(sorted(placed, key=lambda one: one.certainty == "maybe"))


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files named, and those below the folders named, but hidden ones, built ones and tests."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            files[path] = None
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(
                name for name in folders if name[0] != "." and name not in _SKIPPED_FOLDERS
            )
            found = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
            files.update(
                (one, None) for one in found if not (_waits_for_a_writer(one) or _is_test(one))
            )
    return list(files)


def _is_test(path: Path) -> bool:
    if not _NAMED_A_TEST.fullmatch(path.name):
        return False
    try:
        return _TESTS.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return True


def findings_of(source: str, path: str) -> list[Finding]:
    """Return what would make the host wait in one source text, if it computes on a device.

    Args:
        source: the text of a file.
        path: that the findings give.

    Raises:
        SyntaxError: the text is not Python, or has a null byte.
        RecursionError: its expressions are nested too deep.
    """
    tree = _parsed(source)
    makes_on_host = not _MAKES_ON_DEVICE.search(source)
    waits = waits_of(tree, makes_on_host=makes_on_host, log_level=_log_level(source))
    if not waits:
        return []
    # Lines as Python counts them: a form feed, or a separator of Unicode, ends none.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    places = Places(tree)
    allowed = _allowed_lines(source, places)
    findings = []
    for wait in waits:
        if wait.line in allowed or (wait.cause == "gc" and _COLLECTS_ITSELF.search(source)):
            continue
        cause = cast("Cause", wait.cause)
        text = lines[wait.line - 1].strip() if wait.line <= len(lines) else ""
        findings.append(
            Finding(
                code=CODE_OF[cause],
                site=Site(path=path, line=wait.line, function=wait.function, source=text),
                call=wait.call,
                per_step=None,
                certainty="surely" if wait.sure else "maybe",
                cause=cause_text(cause, wait.call),
                mend=mend_text(cause, wait.call, place=places.at(wait.line)),
            )
        )
    return findings


def _log_level(source: str) -> int:
    """Return the level below which nothing is logged, as far as the file sets one."""
    names = re.findall(r"(?:level=|setLevel\()logging\.([A-Z]+)", source)
    return max((getattr(logging, name, 0) for name in names), default=0)


def _allowed_lines(source: str, places: Places) -> set[int]:
    """Return the lines at which waits are allowed.

    A comment at the end of a line allows the statement that the line is in; alone on its line, the
    statement of the next. Of a block it is the header. A comment without a reason allows nothing.
    """
    if "gapless:" not in source:
        return set()
    allowed: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and _ALLOWANCE.search(token.string):
            line = token.start[0]
            is_alone = not token.line[: token.start[1]].strip()
            allowed.update(places.lines_around(line + 1 if is_alone else line))
    return allowed


def _look_at_file(path: Path) -> _FileLook:
    """Return what was found in a file, or why it could not be looked at."""
    shown = _shown(path)
    if _waits_for_a_writer(path):
        return _FileLook(path=shown, unread=f"{shown} is no regular file.")
    if path.suffix == ".ipynb":
        reason = f"{shown} is a notebook, not Python: jupyter's nbconvert makes a script of it."
        return _FileLook(path=shown, unread=reason)
    try:
        source = _read(path)
        if not _holds_tensors(source, path):
            _parsed(source)  # a file that does not parse is named, whatever it holds
            return _FileLook(path=shown)
        findings = findings_of(source, shown)
        matters = findings or "backward" in source
        outlines = outlines_of(_parsed(source)) if matters else []
        return _FileLook(
            path=shown,
            findings=findings,
            outlines=outlines,
            names_a_device=bool(_NAMES_A_DEVICE.search(source)),
            goes_backward=".backward()" in source,
        )
    except (OSError, UnicodeError, LookupError) as error:
        return _FileLook(path=shown, unread=f"{shown} cannot be read: {error}.")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f":{line}" if line else ""
        reason = f"{shown}{where} does not parse: {getattr(error, 'msg', error)}."
        return _FileLook(path=shown, unread=reason)
    except (RecursionError, MemoryError):  # the parser says the latter
        return _FileLook(path=shown, unread=f"{shown} is nested too deep to be looked at.")


@lru_cache(maxsize=1)
def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a text, without what Python warns of in it: that is the script's own."""
    with FilterInFront("ignore"), no_line_warns_anew():
        return ast.parse(source)


def _waits_for_a_writer(path: Path) -> bool:
    """Whether reading a file may wait for ever, as of a pipe that has a name."""
    try:
        return path.is_fifo() or path.is_socket()
    except OSError:
        return False


def _read(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        with tokenize.open(path) as file:
            return file.read()


def _holds_tensors(source: str, path: Path) -> bool:
    if _WORDS.search(source):
        return True
    return any(
        _WORDS.search(_read(beside))
        for name in set(_IMPORTED.findall(source))
        if (beside := path.parent / f"{name}.py").is_file()
    )


def _shown(path: Path) -> str:
    """Return a path as short as it can be from the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError, RuntimeError):  # also links that go round in a circle
        return str(path)
