"""Write the cases of the corpus, and read their labels: which lines wait, which only look so."""

from __future__ import annotations

import ast
import atexit
import functools
import io
import json
import os
import re
import shutil
import tempfile
import tokenize
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


CORPUS = Path(__file__).parent / "corpus"
# Counted apart.
APART = ("frameworks", "planted")
THREADS = ("main", "autograd", "other")
VERDICTS = ("surely", "maybe", "no")

_STEP = {"step": True, "step of no optimizer": False}
_MARKER = re.compile(r"\s*(step( of no optimizer)?\s*(;|$)|waits:|costs:|harmless:)")
_COUNT = re.compile(r"(\d+)(?:/(\d+))?(?:-(\d+))? a step")


class LabelError(ValueError):
    """A marker that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One line that makes the host wait for the device, or costs host time in another way.

    Attributes:
        path: of the file that holds the line.
        line: that carries the marker, from 1.
        first_line: of the statement, or of the header of the block, that the marker belongs to.
        last_line: of the same.
        cause: a word of the list in the corpus' README.
        least: the fewest waits a step.
        most: the most waits a step.
        thread: "main", "autograd" or "other".
        in_sync_debug: whether `torch.cuda.set_sync_debug_mode` is expected to see it.
        static: "surely" and "maybe" are what a look at the syntax tree must say at least.
        unsure: whether only a GPU can settle it.
        is_wait: False for what costs time without waiting for the device.
    """

    path: Path
    line: int
    first_line: int
    last_line: int
    cause: str
    least: Fraction
    most: Fraction
    thread: str
    in_sync_debug: bool
    static: str
    unsure: bool
    is_wait: bool

    def covers(self, path: Path, line: int) -> bool:
        """Return whether a finding at this line is this one."""
        return path.name == self.path.name and self.first_line <= line <= self.last_line


@dataclass(frozen=True, kw_only=True)
class Harmless:
    """One line that looks as if it waited, and does not."""

    path: Path
    line: int
    first_line: int
    last_line: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """The line that runs once a step.

    Attributes:
        line: from 1.
        has_optimizer: whether an optimizer is called in it.
    """

    line: int
    has_optimizer: bool


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known of a script: its waits, its harmless lines and the line of its step."""

    path: Path
    waits: tuple[Wait, ...]
    harmless: tuple[Harmless, ...]
    step: tuple[Path, int]
    has_optimizer: bool

    @property
    def apart(self) -> str:
        """The folder of cases that are counted apart; empty for all others."""
        folder = self.path.parent.name
        return folder if folder in APART else ""

    @property
    def name(self) -> str:
        """Its name in the table; with its folder where it is counted apart."""
        return f"{self.apart}/{self.path.stem}" if self.apart else self.path.stem

    @property
    def is_blocking(self) -> bool:
        """Whether one of its lines waits for the device for certain."""
        return any(wait.is_wait and wait.least > 0 for wait in self.waits)


@functools.cache
def scripts() -> Path:
    """Write the cases of the table to a folder, which goes with this process; return it."""
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    atexit.register(_remove, folder, os.getpid())
    table = tomllib.loads((CORPUS / "cases.toml").read_text(encoding="utf-8"))
    for case in (*table["helper"], *table["case"]):
        code = case["code"].replace("SETUP_BY_NAME\n", table["setup_by_name"])
        code = code.replace("SETUP\n", table["setup"])
        path = folder / f"{case['name']}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""{case["why"]}"""\n\n{code}', encoding="utf-8")
    return folder


def _remove(folder: Path, owner: int) -> None:
    # Not by a process that a case has forked.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def all_cases() -> list[Case]:
    """Return those of the table, then the planted ones; a name with an underscore is a helper's."""
    paths = [*sorted(scripts().rglob("*.py")), *sorted((CORPUS / "planted").glob("*.py"))]
    return [read_case(path) for path in paths if not path.name.startswith("_")]


def run_waiting(
    cases: list[Case], file: Path, run: Callable[[Case], dict], *, jobs: int
) -> list[dict]:
    """Run all cases that a file does not hold as right, writing it after each; return all results."""
    found = {one["case"]: one for one in json.loads(file.read_text())} if file.exists() else {}
    found = {name: one for name, one in found.items() if one["right"]}
    waiting = [case for case in cases if case.name not in found]
    print(f"{len(waiting)} of {len(cases)} cases run, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run, case) for case in waiting]):
            one = done.result()
            found[one["case"]] = one
            partial = file.with_suffix(".partial")
            rows = sorted(found.values(), key=lambda row: row["case"])
            partial.write_text(json.dumps(rows, indent=1))
            partial.replace(file)
            print("right" if one["right"] else "WRONG", one["case"], flush=True)
    return [found[case.name] for case in cases]


def read_case(path: Path) -> Case:
    """Return the labels of a script and of the helpers beside it that it imports.

    Raises:
        LabelError: a marker cannot be read, or the case has no line of its step, or two.
    """
    waits: list[Wait] = []
    harmless: list[Harmless] = []
    steps: list[tuple[Path, Step]] = []
    for file in [path, *_helpers(path)]:
        for label in read_labels(file):
            if isinstance(label, Wait):
                waits.append(label)
            elif isinstance(label, Harmless):
                harmless.append(label)
            else:
                steps.append((file, label))
    if len(steps) != 1:
        raise LabelError(f"{path}: one line must be marked `# step`, but {len(steps)} are.")
    ((file, step),) = steps
    return Case(
        path=path,
        waits=tuple(waits),
        harmless=tuple(harmless),
        step=(file, step.line),
        has_optimizer=step.has_optimizer,
    )


def read_labels(path: Path) -> list[Wait | Harmless | Step]:
    """Return the labels of one file in their order."""
    source = path.read_text(encoding="utf-8")
    spans = _spans(ast.parse(source))
    labels: list[Wait | Harmless | Step] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and _MARKER.match(token.string[1:]):
            line = token.start[0]
            for piece in token.string[1:].split(";"):
                labels.append(_label(piece.strip(), path=path, line=line, span=_span(spans, line)))
    return labels


def _label(text: str, *, path: Path, line: int, span: tuple[int, int]) -> Wait | Harmless | Step:
    first, last = span
    if text in _STEP:
        return Step(line=line, has_optimizer=_STEP[text])
    kind, _, rest = text.partition(":")
    if kind == "harmless":
        reason = rest.strip()
        return Harmless(path=path, line=line, first_line=first, last_line=last, reason=reason)
    if kind not in ("waits", "costs") or not rest.strip():
        raise LabelError(f"{path}:{line}: a marker must be step, waits, costs or harmless: {text}")
    cause, *details = [part.strip() for part in rest.split(",")]
    found = {"thread": "main", "in_sync_debug": True, "static": "maybe", "unsure": False}
    least = most = Fraction(1)
    for detail in details:
        if count := _COUNT.fullmatch(detail):
            low, out_of, high = count.groups()
            least = Fraction(int(low), int(out_of or 1))
            most = Fraction(int(high), int(out_of or 1)) if high else least
        else:
            found |= _detail(detail, where=f"{path}:{line}")
    return Wait(
        path=path,
        line=line,
        first_line=first,
        last_line=last,
        cause=cause,
        least=least,
        most=most,
        is_wait=kind == "waits",
        **found,
    )


def _detail(detail: str, *, where: str) -> dict[str, object]:
    word, _, value = detail.partition(" ")
    if word == "in" and value in THREADS:
        return {"thread": value}
    if word == "static" and value in VERDICTS:
        return {"static": value}
    if detail == "unseen":
        return {"in_sync_debug": False}
    if detail == "unsure":
        return {"unsure": True}
    raise LabelError(f"{where}: `{detail}` says nothing that is known; see the corpus' README.")


def _helpers(path: Path) -> list[Path]:
    """Return the helpers beside a script that it imports, and those that they import."""
    found: list[Path] = []
    waiting = [path]
    while waiting:
        for name in _imports(waiting.pop()):
            helper = path.parent / f"{name}.py"
            if helper.exists() and helper not in found and helper != path:
                found.append(helper)
                waiting.append(helper)
    return found


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


def _spans(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the first and last line of each statement; of a block, those of its header."""
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            spans.append((node.lineno, node.cases[0].pattern.lineno - 1))
        elif isinstance(node, ast.match_case):
            spans.append((node.pattern.lineno, node.body[0].lineno - 1))
        elif isinstance(node, ast.stmt | ast.excepthandler):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body:
                last = max(node.lineno, body[0].lineno - 1)
            spans.append((node.lineno, last))
    return spans


def _span(spans: list[tuple[int, int]], line: int) -> tuple[int, int]:
    around = [span for span in spans if span[0] <= line <= span[1]]
    return min(around, key=lambda span: span[1] - span[0], default=(line, line))
