"""Hold the look at the syntax tree against files of public repositories that were read by hand.

    cd tests && python -m doctor.public_look [--json FILE] [--table FILE] FOLDER

FOLDER holds the files of `public_files/lines.toml` as OWNER+NAME/PATH, as their commits have them;
nothing is fetched. All files of a repository are looked at together.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from doctor.judge import COSTS
from gapless.cli.main import run_command


TABLE = Path(__file__).parent / "public_files" / "lines.toml"
# What is set up once a run is not reported, and nobody misses it.
PARTS = ("step", "called", "evaluation", "saving", "set-up")
VERDICTS = ("sure", "maybe", "no", "via")


@dataclass(frozen=True, kw_only=True)
class Line:
    """What somebody who read a file says of one of its statements."""

    first: int
    last: int
    verdict: str
    part: str
    mend: str
    words: str
    why: str


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a public repository, and its lines that wait or look as if they did."""

    repository: str
    commit: str
    path: str
    sha256: str
    lines: tuple[Line, ...]

    @property
    def place(self) -> str:
        """Where it lies below the folder of all files."""
        return f"{self.repository.replace('/', '+')}/{self.path}"

    def at(self, number: int) -> Line | None:
        """Return what the reader says of a line; None where nothing waits or looks like it."""
        return next((one for one in self.lines if one.first <= number <= one.last), None)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line that the look reports, and what the reader says of it."""

    file: File
    number: int
    code: str
    certainty: str
    line: Line | None

    @property
    def verdict(self) -> str:
        """The reader's; a line that is not listed does not wait."""
        return self.line.verdict if self.line else "no"


@dataclass(frozen=True, kw_only=True)
class Look:
    """All findings in their order, repository by repository."""

    files: tuple[File, ...]
    findings: dict[str, tuple[Finding, ...]]

    def missed(self, *parts: str) -> list[tuple[File, Line]]:
        """Return the lines that surely wait in these parts and are not reported."""
        found = {
            (one.file.place, one.line.first)
            for all_found in self.findings.values()
            for one in all_found
            if one.line
        }
        return [
            (file, line)
            for file, line in self.waiting(*parts)
            if (file.place, line.first) not in found
        ]

    def waiting(self, *parts: str) -> list[tuple[File, Line]]:
        """Return the lines that surely wait in these parts."""
        return [
            (file, line)
            for file in self.files
            for line in file.lines
            if line.verdict == "sure" and line.part in parts
        ]

    def recall(self, *parts: str) -> float:
        """Return the share of the waiting lines of these parts that is reported."""
        waiting = self.waiting(*parts)
        return 1 - len(self.missed(*parts)) / len(waiting) if waiting else 1.0

    def judged(self, certainty: str = "") -> tuple[list[Finding], list[Finding]]:
        """Return the right and the wrong findings; what nobody can say from the files is neither."""
        mine = [
            one
            for all_found in self.findings.values()
            for one in all_found
            if certainty in ("", one.certainty)
        ]
        return (
            [one for one in mine if one.verdict == "sure"],
            [one for one in mine if one.verdict == "no"],
        )

    def precision(self, certainty: str = "") -> float:
        """Return the share of the findings that are right."""
        right, wrong = self.judged(certainty)
        return len(right) / max(1, len(right) + len(wrong))

    def out_of_order(self) -> list[tuple[Finding, Finding]]:
        """Return findings of a training step with the one of another part that stands before."""
        found = []
        for all_found in self.findings.values():
            before = None
            for one in all_found:
                if one.line is None or one.verdict in ("no", "via"):
                    continue
                if one.line.part != "step":
                    before = before or one
                elif before:
                    found.append((before, one))
        return found


def read_table(path: Path = TABLE) -> tuple[File, ...]:
    """Return the files of a table.

    Raises:
        ValueError: a line cannot be read, or stands before the one above it.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(
        File(**(one | {"lines": tuple(_lines(one["lines"], one["path"]))}))
        for one in table["file"]
    )


def _lines(text: str, path: str) -> list[Line]:
    lines: list[Line] = []
    for row in text.splitlines():
        span, verdict, part, mend, words, why = row.split(" | ")
        first, _, last = span.partition("-")
        line = Line(
            first=int(first),
            last=int(last or first),
            verdict=verdict,
            part=part,
            mend=mend,
            words=words,
            why=why,
        )
        known = verdict in VERDICTS and part in PARTS
        if not known or line.first <= (lines[-1].last if lines else 0) or line.last < line.first:
            raise ValueError(f"{path}: {row}")
        lines.append(line)
    return lines


def what_is_absent(folder: Path, files: tuple[File, ...]) -> str:
    """Return why the files cannot be looked at; empty where all are there as they were read."""
    for file in files:
        at = folder / file.place
        if not at.is_file():
            return f"{at} is not there; nothing is fetched"
        if hashlib.sha256(at.read_bytes()).hexdigest() != file.sha256:
            return f"{at} is not the file of commit {file.commit}"
    return ""


def look_at(folder: Path, files: tuple[File, ...]) -> Look:
    """Run `gapless doctor --static` over each repository's files."""
    found = {}
    for repository in dict.fromkeys(file.repository for file in files):
        mine = {file.place: file for file in files if file.repository == repository}
        session = _session(folder / repository.replace("/", "+"))
        found[repository] = tuple(
            _finding(one, folder, mine) for one in session["findings"] if one["code"] not in COSTS
        )
    return Look(files=files, findings=found)


def _session(at: Path) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_command(["doctor", "--static", "--format", "json", str(at)])
    session: dict = json.loads(out.getvalue())
    return session


def _finding(one: dict, folder: Path, files: dict[str, File]) -> Finding:
    number = one["site"]["line"]
    path = (folder / one["site"]["path"]).resolve()
    file = next(file for place, file in files.items() if (folder / place).resolve() == path)
    return Finding(
        file=file,
        number=number,
        code=one["code"],
        certainty=one["certainty"],
        line=file.at(number),
    )


def say(look: Look) -> str:
    """Return every missed and every wrong line, then a table by repository and the shares."""
    lines = [
        f"missed: {file.place}:{line.first}: {line.part}: {line.words}: {line.why}"
        for part in PARTS[:4]
        for file, line in look.missed(part)
    ]
    for certainty in ("surely", "maybe"):
        for one in look.judged(certainty)[1]:
            why = one.line.why if one.line else "nothing there touches the device"
            lines.append(f"wrong: {one.file.place}:{one.number}: {one.code} {certainty}: {why}")
    lines += [
        f"order: {late.file.place}:{late.number} stands after {early.file.place}:{early.number}, "
        f"which is {early.line.part if early.line else ''}"
        for early, late in look.out_of_order()
    ]
    for repository in look.findings:
        one = Look(
            files=tuple(file for file in look.files if file.repository == repository),
            findings={repository: look.findings[repository]},
        )
        lines.append(f"{repository:52}{_shares(one)}")
    lines.append(f"{'all':52}{_shares(look)}")
    return "\n".join(lines)


def _shares(look: Look) -> str:
    cells = []
    for part in PARTS[:4]:
        waiting = len(look.waiting(part))
        cells.append(f"{part} {waiting - len(look.missed(part))}/{waiting}")
    for certainty in ("surely", "maybe"):
        right, wrong = look.judged(certainty)
        cells.append(f"{certainty} {len(right)} right {len(wrong)} wrong")
    cells.append("in order" if not look.out_of_order() else "out of order")
    return "; ".join(cells)


def main() -> int:
    """Look at the files and say what was missed and what is wrong; return 2 where they are absent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--json", type=Path, help="the findings as well, with the reader's verdicts"
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="such as unseen.toml")
    chosen = parser.parse_args()
    files = read_table(chosen.table)
    if why := what_is_absent(chosen.folder, files):
        print(why)
        return 2
    look = look_at(chosen.folder, files)
    if chosen.json:
        rows = [
            [one.file.place, one.number, one.code, one.certainty, one.verdict]
            for all_found in look.findings.values()
            for one in all_found
        ]
        chosen.json.write_text(json.dumps(rows, indent=0))
    print(say(look))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
