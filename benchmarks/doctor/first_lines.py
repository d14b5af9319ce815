"""What `gapless doctor` says first of programs of others, which run untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import RunError, run
from benchmarks.programs_of_others import PROGRAMS, placed


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


NUM_LINES = 12
LIMIT_S = 120


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the first lines of the report of each program that is there."""
    chosen = [name for name in PROGRAMS if name in (options.cases or PROGRAMS)]
    failed = []
    for name in chosen:
        try:
            entry = {"name": name, **_said_of(name, options)}
        except RunError as error:  # which does not cost the others
            failed.append(str(error))
        else:
            yield entry
    if failed:
        raise RunError("; ".join(failed))


def _said_of(name: str, options: Options) -> dict[str, Any]:
    _, commit, inside, words, more = PROGRAMS[name]
    with placed(name, options.programs) as (root, folder):
        out = root.parent / "report.txt"
        words = ["--stop-after", "--out", str(out), *f"{words} {more}".split()]
        said = ""
        try:
            command = ["-m", "gapless", "doctor", *words]
            run(command, limit_s=LIMIT_S, folder=folder, path=[root])
        except RunError as error:
            said = str(error)
        if not out.exists():
            raise RunError(f"{name} has no report: {said}")
        report = out.read_text(encoding="utf-8").splitlines()
    return {
        "at": f"{PROGRAMS[name][0]}/{inside}@{commit}",
        "lines": report[:NUM_LINES],
        "report": report,
        "is_right": None,
    }
