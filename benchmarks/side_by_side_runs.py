"""Train, resume, translate and evaluate through the command line of a tree, and digest the files.

Every run is made in a folder of its side under the same relative path, so that files and output
of two trees can be compared byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import yaml


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# (kind of value, its label, the value): values are equal if their texts are.
Value = tuple[str, str, str]
Record = dict[str, list[Value]]

# Keys of metrics.jsonl, summary.json and the saved state that are times, rates of them, or memory
# of the process; left out wherever they stand.
LEFT_OUT = {
    *("ms", "wall_ms", "data_wait_ms", "launch_ms", "busy_ms", "gap_ms", "gap_share"),
    *("wait_ms", "busy_share"),
    *("train_seconds", "warm_up_seconds", "wall_seconds", "tokens_per_second"),
    "peak_memory_bytes",
}

# Parts of a run that are left out: events hold the figures of metrics.jsonl, and both hold times.
LEFT_OUT_PARTS = {"tensorboard", "errors.log"}

PLANS = ("blocking", "four-stream", "captured", "auto")

_DATA = "tiny.tsv"
_RUN = "run"
_RESUMED = "command line, stopped and resumed"
_BEGUN_BY_OLD = "command line, begun by the old tree"

_SETTINGS = [
    *("--data", _DATA, "--columns", "en,zh", "--src", "en", "--tgt", "zh"),
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--vocab-size", "300", "--warmup", "5", "--beam", "2"),
    *("--batch-size", "16", "--max-length", "20", "--dropout", "0.3", "--workers", "0"),
    *("--device", "cpu", "--deterministic", "--seed", "1", "--run-dir", _RUN),
]


@dataclass(frozen=True)
class Side:
    """A tree and the folder that its runs are written to.

    Attributes:
        source: the `src` folder of the tree.
        folder: where its commands run.
    """

    source: Path
    folder: Path

    def at(self, name: str) -> Side:
        """Return the same tree with a new folder inside this one, which has the data."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        (folder / _DATA).write_text(_pairs(), encoding="utf-8")
        return Side(self.source, folder)

    def run(self, *arguments: str) -> str:
        """Run Python in the folder with this tree's package; return what it prints.

        Raises:
            RuntimeError: the command failed.
        """
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, **self._settings()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            command = " ".join(arguments)
            raise RuntimeError(f"python {command}, with {self.source}:\n{done.stderr}")
        return done.stdout

    def gapless(self, *arguments: str) -> str:
        """Run a command of gapless; return what it prints."""
        return self.run("-m", "gapless", *arguments)

    def _settings(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.source),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }


def _pairs() -> str:
    """Return a file of sentence pairs in two made-up languages."""
    draw = random.Random(3)
    words = [("red", "红"), ("big", "大"), ("cat", "猫"), ("dog", "狗"), ("sees", "看")]
    rows = [[draw.choice(words) for _ in range(draw.randint(2, 6))] for _ in range(80)]
    lines = [
        f"{' '.join(en for en, _ in row)} {n}.\t{''.join(zh for _, zh in row)}{n}。\n"
        for n, row in enumerate(rows)
    ]
    return "".join(lines)


def names() -> list[str]:
    """Return the names of all cases."""
    return [*(f"command line, {plan}" for plan in PLANS), _RESUMED, _BEGUN_BY_OLD]


def run_all(side: Side, only: str) -> Record:
    """Run the cases whose name contains a text; the resumed run leaves what it began."""
    found: Record = {}
    for plan in PLANS:
        name = f"command line, {plan}"
        if only in name:
            here = side.at(plan)
            here.gapless("train", *_SETTINGS, "--plan", plan, "--max-steps", "8")
            found[name] = digest_run(here.folder / _RUN) + _outputs(here)
    if only in _RESUMED or only in _BEGUN_BY_OLD:
        here = side.at("resumed")
        here.gapless("train", *_SETTINGS, "--plan", "gapless", "--max-steps", "4")
        shutil.copytree(here.folder / _RUN, side.folder / "begun")
        found[_RESUMED] = _resume(here)
    return found


def run_across(old: Side, new: Side, records: tuple[Record, Record]) -> None:
    """Resume with the new tree what the old one began, to be compared with the old one's own."""
    if _RESUMED not in records[0]:
        return
    here = new.at("across")
    shutil.copytree(old.folder / "begun", here.folder / _RUN)
    records[0][_BEGUN_BY_OLD] = records[0][_RESUMED]
    records[1][_BEGUN_BY_OLD] = _resume(here)


def _resume(side: Side) -> list[Value]:
    side.gapless("train", "--resume", _RUN, "--max-steps", "8")
    return digest_run(side.folder / _RUN) + _outputs(side)


def _outputs(side: Side) -> list[Value]:
    translated = side.gapless(
        "translate", _RUN, "the red cat sees 3.", "big dog", "--device", "cpu"
    )
    evaluated = side.gapless("evaluate", _RUN, "--device", "cpu")
    hypotheses = (side.folder / _RUN / "hypotheses.test.txt").read_bytes()
    return [
        ("output", "of gapless translate", translated),
        ("output", "of gapless evaluate", evaluated),
        ("files", "hypotheses.test.txt", hashlib.sha256(hypotheses).hexdigest()),
    ]


def digest_run(folder: Path) -> list[Value]:
    """Return what a run has written, without times: one value for each file, line or key."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in LEFT_OUT_PARTS:
            found += _digest_file(path, str(name))
    return found


def _digest_file(path: Path, name: str) -> list[Value]:
    if path.name == "metrics.jsonl":
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [("metrics", at, text) for at, text in _flat(lines, name)]
    if path.name == "summary.json":
        return _digest_summary(json.loads(path.read_text(encoding="utf-8")), name)
    if path.name == "state.pt":
        state = torch.load(path, map_location="cpu", weights_only=True)
        return [("state", at, text) for at, text in _flat(state, name)]
    if path.name == "meta.json":
        meta = json.loads(path.read_text())
        meta.pop("metrics", None)  # length and hash of metrics.jsonl, which holds times
        return [("meta", at, text) for at, text in _flat(meta, name)]
    if path.name == "config.yaml":
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [("settings", f"{name}/{key}", repr(value)) for key, value in settings.items()]
    if path.name == "manifest.json":  # hashes of the files beside it
        return []
    kind = "weights" if path.suffix == ".safetensors" else "files"
    return [(kind, name, hashlib.sha256(path.read_bytes()).hexdigest())]


def _digest_summary(summary: dict[str, Any], name: str) -> list[Value]:
    plan = summary.pop("plan_settings")
    return [
        *(("summary", at, text) for at, text in _flat(summary, name)),
        *(("plan_settings", key, repr(value)) for key, value in plan.items()),
    ]


def _flat(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield every leaf of a structure with its path, but for what is left out."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in LEFT_OUT:
                yield from _flat(part, f"{at}/{key}")
    elif isinstance(value, list | tuple):
        yield f"{at}/length", str(len(value))
        for number, part in enumerate(value):
            yield from _flat(part, f"{at}/{number}")
    elif isinstance(value, torch.Tensor):
        yield at, digest(value)
    else:
        yield at, value.hex() if isinstance(value, float) else repr(value)


def digest(tensor: torch.Tensor) -> str:
    """Return dtype, shape and the hash of a tensor's bytes."""
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(data).hexdigest()}"
