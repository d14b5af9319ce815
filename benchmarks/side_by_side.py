"""Run an old commit and this tree side by side, and compare what they compute bit for bit.

    python -m benchmarks.side_by_side --old COMMIT_OR_FOLDER [--only TEXT] [--json FILE] [--break]

Every plan trains a small model on a CPU and under schedules of the simulated device; tiny
translation runs go through the command line, one of them begun by the old tree and resumed by this
one. One line for each says how many values were compared and where the first difference is; exit
code 1 if anything differs. Times and what depends on them are left out: see
`side_by_side_runs.LEFT_OUT`. Both trees run on one machine, at the same time.

`--break` changes the last digit of one value of each case, to see that every line then says so.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import side_by_side_runs as runs
from benchmarks.side_by_side_runs import Record, Side, Value


ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("side_by_side_worker.py")

# Kinds of values that one tree may have and the other not; values under equal names are compared.
_MAY_DIFFER_IN_KEYS = ("plan_settings", "settings", "meta", "files")


@dataclass(frozen=True)
class Row:
    """What came of one case.

    Attributes:
        case: its name.
        num_values: compared, by kind.
        difference: the first one, None if all values are equal.
        note: keys that one of the trees does not have, where that is allowed: they are left out.
    """

    case: str
    num_values: dict[str, int]
    difference: str | None
    note: str = ""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.num_values.items())
        verdict = "equal" if self.difference is None else f"DIFFERENT: {self.difference}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.case:38} {counts:62} {verdict}{note}"


def compare(old: Record, new: Record) -> list[Row]:
    """Compare all cases of both records."""
    return [compare_case(case, old.get(case), new.get(case)) for case in {**old, **new}]


def compare_case(case: str, old: list[Value] | None, new: list[Value] | None) -> Row:
    """Compare the values of one case, of which one tree may know nothing."""
    if not old or not new:
        return Row(case, {}, f"only the {'old' if old else 'new'} tree has values")
    before, after = by_name(old), by_name(new)
    left_out = {name for name in before.keys() ^ after.keys() if name[0] in _MAY_DIFFER_IN_KEYS}
    compared = [name for name in {**before, **after} if name not in left_out]
    differences = (
        f"{kind}, {label}: {before.get((kind, label), 'none')!r} became "
        f"{after.get((kind, label), 'none')!r}"
        for kind, label in compared
        if before.get((kind, label)) != after.get((kind, label))
    )
    counts = Counter(kind for kind, _ in compared)
    return Row(case, dict(counts), next(differences, None), _note(left_out, before))


def by_name(values: list[Value]) -> dict[tuple[str, str], str]:
    """Return values by kind and label.

    Raises:
        ValueError: two values have one name, so that one of them would not be compared.
    """
    found = {(kind, label): value for kind, label, value in values}
    if len(found) != len(values):
        twice = [
            name for name, count in Counter((k, at) for k, at, _ in values).items() if count > 1
        ]
        raise ValueError(f"several values are named {twice[0]}")
    return found


def _note(left_out: set[tuple[str, str]], before: dict[tuple[str, str], str]) -> str:
    parts = []
    for kind in _MAY_DIFFER_IN_KEYS:
        old = sorted({_key(label) for at, label in left_out & before.keys() if at == kind})
        new = sorted({_key(label) for at, label in left_out - before.keys() if at == kind})
        if old or new:
            parts.append(f"left out of {kind}: {old} of the old tree, {new} of the new one")
    return "; ".join(parts)


def _key(label: str) -> str:
    """Return the key at the end of a label, which may begin with the file that holds it."""
    return label.rpartition("/")[-1]


def break_all(record: Record) -> None:
    """Change the last digit of the last value of each case."""
    for values in record.values():
        kind, label, value = values[-1]
        values[-1] = (kind, label, value[:-1] + ("1" if value.endswith("0") else "0"))


def export(old: str, folder: Path) -> Path:
    """Return the `src` folder of a tree: of a folder, or of a commit that is written out.

    Raises:
        subprocess.CalledProcessError: git knows no such commit.
    """
    if Path(old).is_dir():
        return Path(old).resolve() / "src"
    command = ["git", "-C", str(ROOT), "archive", old, "src"]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run_side(side: Side, only: str) -> Record:
    """Run all cases whose name contains a text on one tree.

    Raises:
        RuntimeError: a command failed, or another tree's package was loaded.
    """
    side.folder.mkdir()
    printed = json.loads(side.run(str(WORKER), "--only", only))
    if printed["source"] != str(side.source):
        raise RuntimeError(f"loaded {printed['source']}, expected {side.source}")
    record = {
        case: [(kind, label, value) for kind, label, value in values]
        for case, values in printed["cases"].items()
    }
    return {**record, **runs.run_all(side, only)}


def run_both(old: str, only: str) -> tuple[Record, Record]:
    """Run both trees, and the new one on what the old one began."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sides = (
            Side(export(old, folder / "tree"), folder / "old"),
            Side(ROOT / "src", folder / "new"),
        )
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda side: run_side(side, only), sides)
        runs.run_across(*sides, (first, second))
    return first, second


def main(arguments: list[str] | None = None) -> int:
    """Compare, print one line for each case, and return 1 if anything differs."""
    parser = argparse.ArgumentParser(description="Compare an old commit with this tree.")
    parser.add_argument("--old", required=True, help="commit, or folder of a tree")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, help="file to write the lines to")
    parser.add_argument("--break", action="store_true", dest="broken", help="must fail")
    options = parser.parse_args(arguments)
    old, new = run_both(options.old, options.only)
    if options.broken:
        break_all(new)
    rows = compare(old, new)
    print("\n".join(map(str, rows)))
    num_equal = sum(row.difference is None for row in rows)
    num_values = sum(sum(row.num_values.values()) for row in rows)
    print(f"{num_equal} of {len(rows)} cases are equal, {num_values} values compared")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if rows and num_equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
