"""Takes out of a session what nobody else should read, so that it can be attached to an issue.

Nothing is searched for and replaced: what a script is called, contains or prints can be anything. What
stays is what is known to be gapless' own or a figure. Of sentences the words stay that gapless itself
writes in the texts of the rooms below; a word of the script that is one of these stays as well.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.doctor.advice.explanations import explanations, mend_of, title_of
from gapless.records.finding import Site
from gapless.records.timeline import Span


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.records.finding import Finding, Session, Trial
    from gapless.records.timeline import Gap, Lane, Timeline


def private(session: Session) -> Session:
    """Return a session without source, paths, arguments and names of the script.

    Files become "file 1", "file 2" and so on; numbers of lines stay. Kernels are no more than
    kernels. Device and versions stay.
    """
    names = _Names()
    findings = tuple(_finding(one, names) for one in session.findings)
    timeline = session.timeline
    return replace(
        session,
        command=("script",),
        versions={
            name: text
            for name, text in session.versions.items()
            if name in _VERSIONS and re.fullmatch(r"\d[\w.+]*", text)
        },
        step=names.sentence(session.step),
        findings=findings,
        verdict=names.sentence(session.verdict),
        notes=tuple(map(names.sentence, session.notes)),
        trials=tuple(_trial(one, names) for one in session.trials),
        timeline=None if timeline is None else _timeline(timeline, names),
    )


_VERSIONS = ("python", "torch", "gapless", "driver", "cuda")
_ROOMS = ("doctor", "trials", "device")
_LEFT_OUT = "..."

_NUMBER = re.compile(r"[<>=~+-]{0,2}\d{1,6}([.,:]\d{1,6})?(ms|us|ns|s|x|%)?")
_WORD = re.compile(r"[A-Za-z]+([-'][A-Za-z]+)*")
_API = re.compile(r"(torch|Tensor|gapless)(\.\w+)+|--[a-z-]+")
_OPTIMIZERS = (
    "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD LBFGS Muon NAdam RAdam RMSprop SGD"
)
_STEPS = {f"{name}.step" for name in [*_OPTIMIZERS.split(), "Optimizer"]}


@cache
def _own_words() -> frozenset[str]:
    """Return the words of all texts in the source of the rooms that make sessions."""
    package = Path(__file__).parents[2]
    files = [path for room in _ROOMS for path in sorted((package / room).rglob("*.py"))]
    words: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.update(map(_core, node.value.split()))
    errors = {name for name in vars(builtins) if name.endswith(("Error", "Exception"))}
    return frozenset(words | errors | _STEPS)


def _core(word: str) -> str:
    """Return a word without the punctuation around it."""
    return word.strip(".,;:!?()[]{}'\"`")


@dataclass
class _Names:
    """What the files and threads of a session are called instead."""

    files: dict[str, str] = field(default_factory=dict)
    threads: dict[str, str] = field(default_factory=dict)

    def site(self, site: Site | None) -> Site | None:
        """Return a line of a file that has another name."""
        if site is None:
            return None
        path = self.files.setdefault(site.path, f"file {len(self.files) + 1}")
        return Site(path=path, line=site.line)

    def thread(self, name: str) -> str:
        """Return the name of a thread, which somebody may have chosen."""
        if name in ("main", "autograd", "main thread", "autograd thread"):
            return name
        return self.threads.setdefault(name, f"thread {len(self.threads) + 1}")

    def sentence(self, text: str) -> str:
        """Return a text with the words that are gapless' own, and dots for others."""
        for path in sorted(self.files, key=len, reverse=True):
            if path:
                place = rf"(?<!\S){re.escape(path)}(?=[:.,;)]|\s|$)"
                text = re.sub(place, self.files[path], text)
        return " ".join(_without_repeats(map(_kept, text.split())))


def _kept(word: str) -> str:
    core = _core(word)
    is_own = core in _own_words() and (
        _WORD.fullmatch(core) or _API.fullmatch(core) or core in _STEPS
    )
    return word if not core or is_own or _NUMBER.fullmatch(core) else _LEFT_OUT


def _without_repeats(words: Iterator[str]) -> Iterator[str]:
    last = ""
    for word in words:
        if word != last or word != _LEFT_OUT:
            yield word
        last = word


def _finding(finding: Finding, names: _Names) -> Finding:
    """Return a finding that says what its code says in general."""
    code = finding.code if finding.code in explanations() else "GAP021"
    return replace(
        finding,
        code=code,
        site=names.site(finding.site),
        thread=names.thread(finding.thread),
        call=_call(finding.call),
        cause=f"{title_of(code)}.",
        mend=mend_of(code),
        forward=names.site(finding.forward),
    )


def _call(call: str) -> str:
    """Return what was called if it is torch's, CUDA's or Python's own; else only that it was."""
    is_own = call in _own_words() or _API.fullmatch(call)
    return call if is_own and re.fullmatch(r"[\w.]+", call) else "a call"


def _trial(trial: Trial, names: _Names) -> Trial:
    return replace(
        trial,
        name=names.sentence(trial.name),
        change=names.sentence(trial.change),
        refusal=names.sentence(trial.refusal),
        details=tuple(map(names.sentence, trial.details)),
    )


def _timeline(timeline: Timeline, names: _Names) -> Timeline:
    return replace(
        timeline,
        title="",
        lanes=tuple(_lane(lane, names) for lane in timeline.lanes),
        gaps=tuple(_gap(gap, names) for gap in timeline.gaps),
    )


def _lane(lane: Lane, names: _Names) -> Lane:
    if lane.is_device:
        number = re.match(r"stream \d+", lane.name)
        name = number[0] if number else "stream"
    else:
        name = names.thread(lane.name)
    return replace(lane, name=name, spans=tuple(map(_span, lane.spans)))


def _span(span: Span) -> Span:
    return Span(
        name=span.kind,
        kind=span.kind,
        start_us=span.start_us,
        end_us=span.end_us,
        finding=span.finding,
    )


def _gap(gap: Gap, names: _Names) -> Gap:
    return replace(gap, cause=names.sentence(gap.cause))
