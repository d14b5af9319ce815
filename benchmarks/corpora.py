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
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.facts import place_and_time
from benchmarks.processes import replace_text
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

_LOOKS_EVERY = 0.05
_LOOKS_AT_ALL_EVERY = 0.5

MIB = 1 << 20


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
    """A command of gapless that trains, in a group of processes of its own.

    Args:
        arguments: of `gapless train`.
        run: its folder.

    Attributes:
        first: seconds until the loss of the first update was in its metrics.
        peaks: MiB by what they are of, the highest of each.
    """

    def __init__(self, arguments: Sequence[object], run: Path) -> None:
        self.first, self.peaks = float("nan"), Counter[str]()
        self._run, self._start, self._load = run, time.perf_counter(), os.getloadavg()[0]
        self._processor = _processor_seconds()
        self._log = run.with_suffix(".log")
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gapless", "train", *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, happened: Callable[[], bool] = lambda: False) -> None:
        """Look at the command until something has happened, or it has ended well."""
        looked_at_all = 0.0
        while self._process.poll() is None and not happened():
            if self.first != self.first and _losses(self._run):
                self.first = time.perf_counter() - self._start
            look_at_all = time.perf_counter() - looked_at_all > _LOOKS_AT_ALL_EVERY
            looked_at_all = time.perf_counter() if look_at_all else looked_at_all
            self._look(at_all=look_at_all)
            time.sleep(_LOOKS_EVERY)
        if self._process.returncode:
            raise SystemExit(f"{self._log}: exit code {self._process.returncode}")

    def kill(self) -> None:
        """End it and all its processes by SIGKILL."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def row(self) -> dict[str, Any]:
        """Return what was measured."""
        peaks = {f"{name}_mib": round(size / MIB) for name, size in sorted(self.peaks.items())}
        return {
            "first_update_s": round(self.first, 1),
            "wall_s": round(time.perf_counter() - self._start, 1),
            "processor_s": round(_processor_seconds() - self._processor, 1),
            "load": round(self._load, 1),
            **peaks,
        }

    def _look(self, *, at_all: bool) -> None:
        together, own = 0, self._process.pid
        for pid in [own, *_children(own)]:
            whose = "command" if pid == own else "process"
            found = _memory(pid, "status")
            self._note(f"{whose}_peak", found.get("VmHWM", 0))
            self._note(f"{whose}_anonymous", found.get("RssAnon", 0))
            if at_all:
                together += _memory(pid, "smaps_rollup").get("Pss", 0)
        self._note("all_proportional", together)

    def _note(self, name: str, size: int) -> None:
        self.peaks[name] = max(self.peaks[name], size)


def _processor_seconds() -> float:
    """Return what all commands so far have taken, and the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children(pid: int) -> list[int]:
    try:
        own = [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [pid for child in own for pid in _children(child)]


def _memory(pid: int, file: str) -> dict[str, int]:
    """Return the sizes in bytes that a file of a process has by name; none if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    rows = [line.split() for line in lines if line.endswith(" kB")]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3}


def _losses(run: Path) -> dict[int, tuple[float, float]]:
    """Return loss and tokens of each update, read back to the last bit."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["step"]: (row["loss"], row["tokens"]) for row in rows if row["kind"] == "train"}


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
        losses = _losses(self._folder / "whole")
        return {
            "pairs": self._count,
            "killed_at_shares_of_the_store": moments,
            "updates": len(losses),
            "stores_equal": _content(whole) == _content(self._stores("killed-stores")),
            "losses_equal_after_storing": _losses(self._folder / "storing") == losses,
            "losses_equal_after_training": _losses(self._folder / "training") == losses,
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
    return sum(path.stat().st_size for path in folder.rglob("*.ids")) if folder.exists() else 0


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print a line for each run, and write all of them."""
    options = _parser().parse_args(arguments)
    sides = (options.src, options.tgt)
    columns = sides if options.no_header else None
    text = load_split(options.text, split="train", src=sides[0], tgt=sides[1], columns=columns)
    assert text is not None
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
    parser.add_argument(
        "text", type=Path, help="pairs to draw from, as `gapless train` takes them"
    )
    parser.add_argument("dir", type=Path, help="of texts, stores and runs")
    parser.add_argument("--src", default="en")
    parser.add_argument("--tgt", default="zh")
    parser.add_argument("--no-header", action="store_true", help="of a table: source, target")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--vocab-size", type=int, default=3_500, help="which 2,000 pairs can give")
    parser.add_argument("--only", nargs="+", default=RUNS, help="such as 'stored packed'")
    parser.add_argument("--kill", action="store_true", help="end runs by SIGKILL and resume them")
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
