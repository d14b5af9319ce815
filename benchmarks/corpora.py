"""Train on millions of pairs on a CPU: seconds to the first update, and memory, cold and from the store.

    PYTHONPATH=src python3 -m benchmarks.corpora TEXT DIR --pairs 1000000 --out docs/results/corpora.json

DIR gets so many pairs, drawn from TEXT with one word of another pair put into each side, so that lines differ.
Each run is `gapless train` of a tiny model for a few updates, beside one of 2,000 pairs, `empty`. Cold: without
a store. Memory is sampled: the highest resident set of the command and of a process that it started, what of it
is no file (`anonymous`), and the proportional set of all processes together.
`--kill` also ends a run by SIGKILL while it stores and another while it trains, and starts both again: the store
and every loss have to be those of a run that was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.facts import place_and_time
from benchmarks.processes import replace_text
from benchmarks.training_command import TrainingCommand, losses_in, memory_of, processes_of
from gapless.nmt.data.text_sources import load_split


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.nmt.data.sentences import Pairs


EMPTY = 2_000

LAYOUTS = {"padded": ["--no-pack"], "fixed": ["--fixed-shapes"], "packed": ["--pack"]}
RUNS = ("cold padded", "stored padded", "cold packed", "stored packed")

_TINY = [
    *("--d-model", 32, "--heads", 4, "--ffn", 64, "--encoder-layers", 1, "--decoder-layers", 1),
    *("--dropout", 0, "--average", 1, "--beam", 1, "--device", "cpu", "--deterministic"),
    *("--batch-tokens", 4096, "--loss-interval", 1),
]

# Pairs that are validated with and tested on, each.
_SCORED = 20

# Characters that another pair gives: where no spaces are, its words are sentences.
_LONGEST_WORD = 8

_LOOKS_AT_ALL_EVERY = 0.5

MIB = 1 << 20


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Let a parser take the text to draw from."""
    parser.add_argument(
        "text", type=Path, help="pairs to draw from, as `gapless train` takes them"
    )
    parser.add_argument("--src", default="en")
    parser.add_argument("--tgt", default="zh")
    parser.add_argument("--no-header", action="store_true", help="of a table: source, target")


def read_text(options: argparse.Namespace) -> Pairs:
    """Return the pairs that such options name."""
    sides = (options.src, options.tgt)
    columns = sides if options.no_header else None
    text = load_split(options.text, split="train", src=sides[0], tgt=sides[1], columns=columns)
    assert text is not None
    return text


def make_text(text: Pairs, folder: Path, count: int, *, sides: tuple[str, str]) -> Path:
    """Write so many pairs drawn from some as tables that `gapless train` reads; the same for each call."""
    path = folder / f"text-{count}"
    if (path / "train.tsv").exists():
        return path
    path.mkdir(parents=True)
    draw = random.Random(count)
    words = [[line.split() or ["-"] for line in side] for side in (text.src, text.tgt)]
    for split, rows in {"val": _SCORED, "test": _SCORED, "train": count}.items():
        temporary = path / f".{split}"
        with temporary.open("w", encoding="utf-8") as file:
            file.write("\t".join(sides) + "\n")
            for _ in range(rows):
                number, other = draw.randrange(len(text)), draw.randrange(len(text))
                line = []
                for side in words:
                    own, more = list(side[number]), draw.choice(side[other])
                    own.insert(draw.randint(0, len(own)), more[:_LONGEST_WORD])
                    line.append(" ".join(own))
                file.write("\t".join(line) + "\n")
        temporary.rename(path / f"{split}.tsv")
    return path


# --- a run of the command ---


class Watched:
    """A command of gapless that trains, with the memory of its processes.

    Args:
        arguments: of `gapless train`.
        run: its folder.

    Attributes:
        peaks: MiB by what they are of, the highest of each.
    """

    def __init__(self, arguments: Sequence[object], run: Path) -> None:
        self.peaks = Counter[str]()
        self._load, self._processor = os.getloadavg()[0], _processor_seconds()
        self._command = TrainingCommand(arguments, run)
        self._pids, self._looked_at_all = [self._command.pid], 0.0

    def until(self, happened: Callable[[], bool] = lambda: False) -> None:
        """Look at the command until something has happened, or it has ended well."""

        def looked() -> bool:
            self._look()
            return happened()

        self._command.until(looked)

    def kill(self) -> None:
        """End it and all its processes by SIGKILL."""
        self._command.kill()

    def row(self) -> dict[str, Any]:
        """Return what was measured."""
        peaks = {f"{name}_mib": round(size / MIB) for name, size in sorted(self.peaks.items())}
        return {
            "first_update_s": round(self._command.first, 1),
            "wall_s": round(self._command.seconds(), 1),
            "processor_s": round(_processor_seconds() - self._processor, 1),
            "load": round(self._load, 1),
            **peaks,
        }

    def _look(self) -> None:
        if self._command.seconds() - self._looked_at_all > _LOOKS_AT_ALL_EVERY:
            self._looked_at_all = self._command.seconds()
            self._pids = processes_of(self._command.pid)
            sets = [memory_of(pid, "smaps_rollup").get("Pss", 0) for pid in self._pids]
            self._note("all_proportional", sum(sets))
        for pid in self._pids:
            whose = "command" if pid == self._command.pid else "process"
            found = memory_of(pid, "status")
            self._note(f"{whose}_peak", found.get("VmHWM", 0))
            self._note(f"{whose}_anonymous", found.get("RssAnon", 0))

    def _note(self, name: str, size: int) -> None:
        self.peaks[name] = max(self.peaks[name], size)


def _processor_seconds() -> float:
    """Return what all commands so far have taken, and the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- what is measured ---


class Trials:
    """Runs on one text, each with its stores.

    Args:
        text: its folder.
        count: pairs in it.
        folder: of runs and stores.
        options: of `gapless train`, beside those of a tiny model.
    """

    def __init__(self, text: Path, count: int, folder: Path, options: Sequence[object]) -> None:
        self._text, self._count, self._folder, self._options = text, count, folder, options

    def measure(self, how: str) -> dict[str, Any]:
        """Return what one of `RUNS` needs."""
        when, layout = how.split()
        if when == "cold":
            shutil.rmtree(self._stores(), ignore_errors=True)
        watched = self._start(how, "--max-steps", 4, *LAYOUTS[layout])
        watched.until()
        return {"pairs": self._count, "run": how, **watched.row()}

    def killed(self) -> dict[str, Any]:
        """End runs by SIGKILL, start them again, and return whether they are those that were not."""
        steps = ("--max-steps", 30, "--save-every", 5)
        self._start("whole", *steps).until()
        whole, size = self._stores(), _total(self._stores())
        moments = [0.0, 0.5, 0.9]
        for moment in moments:
            storing = self._start("storing", *steps, stores="killed-stores")
            storing.until(partial(self._has_stored, moment * size))
            storing.kill()
        self._start("storing", *steps, stores="killed-stores").until()
        training = self._start("training", *steps)
        states = self._folder / "training" / "checkpoints"
        training.until(lambda: any(states.glob("step-*")))
        training.kill()
        resumed = Watched(["--resume", self._folder / "training"], self._folder / "training")
        resumed.until()
        losses = losses_in(self._folder / "whole")
        return {
            "pairs": self._count,
            "killed_at_shares_of_the_store": moments,
            "updates": len(losses),
            "stores_equal": _content(whole) == _content(self._stores("killed-stores")),
            "losses_equal_after_storing": losses_in(self._folder / "storing") == losses,
            "losses_equal_after_training": losses_in(self._folder / "training") == losses,
        }

    def _has_stored(self, size: float) -> bool:
        return _total(self._stores("killed-stores")) > size

    def _start(self, name: str, *options: object, stores: str = "stores") -> Watched:
        run = self._folder / name.replace(" ", "-")
        shutil.rmtree(run, ignore_errors=True)
        given = ("--data", self._text, "--run-dir", run, "--store", self._stores(stores))
        return Watched([*given, *_TINY, *self._options, *options], run)

    def _stores(self, name: str = "stores") -> Path:
        return self._folder / f"{self._text.name}-{name}"


def _total(folder: Path) -> int:
    """Return the bytes of all sentences in a folder; files and folders may be renamed or removed meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".ids"):
                with suppress(FileNotFoundError):
                    size += Path(parent, name).stat().st_size
    return size


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print a line for each run, and write all of them."""
    options = _parser().parse_args(arguments)
    sides, text = (options.src, options.tgt), read_text(options)
    facts = place_and_time("cpu", module="benchmarks.corpora")
    for name, path in (("TEXT", options.text), ("DIR", options.dir)):
        facts["command"] = facts["command"].replace(str(path), name)
    rows, kills = [], []
    for count in (EMPTY, *options.pairs):
        folder = make_text(text, options.dir, count, sides=sides)
        asked = ("--src", sides[0], "--tgt", sides[1], "--vocab-size", options.vocab_size)
        trials = Trials(folder, count, options.dir, asked)
        for how in options.only:
            rows.append(trials.measure(how))
            print(json.dumps(rows[-1]), flush=True)
        if options.kill and count != EMPTY:
            kills.append(trials.killed())
            print(json.dumps(kills[-1]), flush=True)
    if options.out is not None:
        replace_text(options.out, json.dumps({**facts, "rows": rows, "kills": kills}, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpora", description=__doc__.splitlines()[0]
    )
    add_text_options(parser)
    parser.add_argument("dir", type=Path, help="of texts, stores and runs")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--vocab-size", type=int, default=3_500, help="which 2,000 pairs can give")
    parser.add_argument("--only", nargs="+", default=RUNS, help="such as 'stored packed'")
    parser.add_argument("--kill", action="store_true", help="end runs by SIGKILL and resume them")
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
