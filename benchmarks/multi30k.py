"""Train the published Multi30k recipe, English to German, and say BLEU and seconds.

    python -m benchmarks.multi30k prepare SOURCE DIR        # BPE, needs subword-nmt
    PYTHONPATH=src python3 -m benchmarks.multi30k train DIR --seeds 1,2,3 --out runs/results
    PYTHONPATH=src python3 -m benchmarks.multi30k train DIR --rows captured --ranks 1,2

Source of recipe and of the published score: github.com/LividWo/Revisit-MMT. Every run is
`gapless train` in a process of its own, one after the other; its seconds are those of the whole
command, and of the updates alone. Ranks share the tokens of an update: two have batches of half as
many, so their updates are those of one. The score is tokenised and lower-cased, so not one of 13a.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.facts import heading, place_and_time
from benchmarks.processes import replace_text
from benchmarks.training_command import launcher
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Sequence


PUBLISHED_BLEU = 41.02
NUM_MERGES = 10_000
_SPLITS = {"train": "train", "val": "val", "test_2016_flickr": "test"}
_LANGUAGES = ("en", "de")

# Packed, these are 59 updates an epoch, about the 60 of the recipe's padded 8,192.
UPDATE_TOKENS = 7300

RECIPE = [
    "--src",
    "en",
    "--tgt",
    "de",
    "--tokenizer",
    "none",
    "--shared-vocab",
    "--share",
    "all",
    "--norm",
    "post",
    "--d-model",
    "128",
    "--ffn",
    "256",
    "--heads",
    "4",
    "--encoder-layers",
    "4",
    "--decoder-layers",
    "4",
    "--dropout",
    "0.3",
    "--lr",
    "5e-3",
    "--warmup",
    "2000",
    "--clip-norm",
    "25",
    "--batch-tokens",
    str(UPDATE_TOKENS),
    "--max-steps",
    "8000",
    "--epochs",
    "200",
    "--val-interval",
    "20",
    "--average",
    "10",
    "--beam",
    "5",
    "--length-penalty",
    "1.0",
    "--early-stopping",
]

ROWS = {
    "captured": ("captured, layers compiled", ["--plan", "captured"]),
    "not-compiled": ("captured, layers not compiled", ["--plan", "captured", "--no-compile"]),
    "auto": ("auto, as `gapless train` runs it", ["--plan", "auto"]),
    "gapless": ("gapless", ["--plan", "gapless", "--no-compile"]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the data, or train on it; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.multi30k", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(required=True)
    prepare = commands.add_parser("prepare", help="split words as the recipe does")
    prepare.add_argument("source", type=Path, help="folder of train.lc.norm.tok.en.gz and so on")
    prepare.add_argument("folder", type=Path, help="where the files to train on are written")
    prepare.set_defaults(command=_prepare)
    train = commands.add_parser("train", help="train in every way, once for each seed")
    train.add_argument("folder", type=Path, help="what `prepare` wrote")
    train.add_argument("--seeds", default="1,2,3", help="with commas")
    train.add_argument("--rows", default="captured,not-compiled", help=f"of {', '.join(ROWS)}")
    train.add_argument("--ranks", default="1", help="with commas; several start under torchrun")
    train.add_argument("--precision", default="bf16")
    train.add_argument("--device", default="auto")
    train.add_argument("--out", type=Path, default=Path("runs/results"), help="for the results")
    train.add_argument("--runs", type=Path, default=Path("runs/multi30k"), help="for the models")
    train.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="begin no run after so long"
    )
    train.add_argument(
        "--options", default="", metavar="'--NAME VALUE ...'", help="more of `gapless train`"
    )
    train.set_defaults(command=_train)
    return parser


def _prepare(options: argparse.Namespace) -> int:
    if find_spec("subword_nmt") is None:
        raise UserError("no package subword-nmt, which the recipe needs; pip install subword-nmt")
    texts = {
        (name, language): _read(options.source, f"{split}.lc.norm.tok.{language}")
        for split, name in _SPLITS.items()
        for language in _LANGUAGES
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    both, codes = options.folder / "train.both", options.folder / "codes"
    both.write_text("".join(texts["train", language] for language in _LANGUAGES), encoding="utf-8")
    print(f"learning {NUM_MERGES:,} merges", flush=True)
    _subword_nmt("learn-bpe", "-s", str(NUM_MERGES), source=both, target=codes)
    both.unlink()
    for (name, language), text in texts.items():
        plain, split = options.folder / "plain", options.folder / f"{name}.{language}"
        plain.write_text(text, encoding="utf-8")
        _subword_nmt("apply-bpe", "-c", str(codes), source=plain, target=split)
        plain.unlink()
        print(f"written: {split}", flush=True)
    return 0


def _read(folder: Path, name: str) -> str:
    packed = folder / f"{name}.gz"
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8") as file:
            return file.read()
    return (folder / name).read_text(encoding="utf-8")


def _subword_nmt(*arguments: str, source: Path, target: Path) -> None:
    # Its own command; run as a module it does nothing.
    call = "from subword_nmt.subword_nmt import main; main()"
    command = [sys.executable, "-c", call, *arguments]
    command += ["--input", str(source), "--output", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"subword-nmt {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def _train(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.rows.split(",")]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise UserError(f"unknown row {unknown[0]!r}; the rows are {', '.join(ROWS)}")
    worlds = [_number_of_ranks(text) for text in options.ranks.split(",")]
    if "@@ " not in _read(options.folder, "train.en"):
        raise UserError(f"{options.folder} has no words split with '@@ '; run `prepare` first")
    facts: dict[str, Any] = {
        **place_and_time(options.device, module="benchmarks.multi30k"),
        "recipe": _recipe(options, ranks=1),
        "published_bleu": PUBLISHED_BLEU,
        "rows": [_row(name, ranks) for name in names for ranks in worlds],
    }
    stem = options.out / ("multi30k" if worlds == [1] else "multi30k-ranks")
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    # Seed by seed, so that a run that is stopped has something of every row.
    for seed in options.seeds.split(","):
        for row in facts["rows"]:
            if options.time_limit is None or time.perf_counter() - start < options.time_limit:
                row["runs"].append(_run(options, row, seed.strip()))
                write(stem, facts)
    print(to_markdown(facts))
    print(f"written: {stem}.json, .md")
    runs = [run for row in facts["rows"] for run in row["runs"]]
    return 0 if runs and not any(run["problem"] for run in runs) else 1


def _number_of_ranks(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise UserError(f"--ranks has {text.strip()!r}, expected numbers from 1 on with commas")
    return int(text)


def _row(name: str, ranks: int) -> dict[str, Any]:
    title = ROWS[name][0]
    if ranks > 1:
        title += f", {ranks} ranks with batches of {UPDATE_TOKENS // ranks:,} tokens"
    return {"name": name, "ranks": ranks, "title": title, "runs": []}


def _recipe(options: argparse.Namespace, *, ranks: int) -> list[str]:
    tokens = RECIPE.index("--batch-tokens") + 1
    recipe = [*RECIPE[:tokens], str(UPDATE_TOKENS // ranks), *RECIPE[tokens + 1 :]]
    return [*recipe, "--precision", options.precision, *shlex.split(options.options)]


def _run(options: argparse.Namespace, row: dict[str, Any], seed: str) -> dict[str, Any]:
    """Train once; return its figures, or the reason why there are none."""
    name, ranks = row["name"], row["ranks"]
    label = name if ranks == 1 else f"{name}-{ranks}-ranks"
    folder = options.runs / f"{label}-{seed}"
    command = [sys.executable, *launcher(ranks), "-m", "gapless", "train"]
    command += ["--data", str(options.folder), *_recipe(options, ranks=ranks)]
    command += [*ROWS[name][1], "--device", options.device, "--seed", seed]
    command += ["--run-dir", str(folder)]
    print(f"{label}, seed {seed}", end=": ", flush=True)
    start, began = time.perf_counter(), time.time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A file, so that a run which is stopped shows where it was.
    log = folder.with_suffix(".log")
    with log.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=file, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        problem = _problem(log.read_text(encoding="utf-8", errors="replace"))
        print(f"failed: {problem}", flush=True)
        return {"seed": seed, "problem": f"exit code {done.returncode}: {problem}"}
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found = figures(summary) | {"seed": seed, "seconds": seconds, "problem": None}
    found["parts"] = parts(summary, _written(folder, began=began), seconds=seconds)
    print(f"BLEU {found['bleu']:.2f}, {seconds:.1f} s in all", flush=True)
    for name, spent in found["parts"].items():
        print(f"  {spent:7.2f} s  {name}", flush=True)
    return found


def _problem(text: str) -> str:
    """Return the line that says why a run failed; torchrun writes its own below it."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if "error: " in line]
    return next(iter([*errors, *lines[-1:]]), "")


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what counts of a run's `summary.json`."""
    names = ("bleu", "signature", "steps", "train_seconds", "warm_up_seconds")
    names += ("wall_seconds", "gap_share", "tokens_per_second", "host_waits")
    return {name: summary[name] for name in names}


def _written(folder: Path, *, began: float) -> list[float]:
    """Return after which seconds a run had begun its folder, saved the final model, and scored it."""
    names = ("config.yaml", "checkpoints/final", "summary.json")
    return [(folder / name).stat().st_mtime - began for name in names]


def parts(summary: dict[str, Any], written: list[float], *, seconds: float) -> dict[str, float]:
    """Return where the seconds of a whole command went."""
    folder, final, scored = written
    asked = ("warm_up_seconds", "train_seconds", "validation_seconds")
    warm_up, training, validations = (summary[name] or 0.0 for name in asked)
    return {
        "imports and data": folder,
        "warm-up": warm_up,
        "training": training,
        "validations": validations,
        "model, checkpoints and the rest": final - folder - warm_up - training - validations,
        "decoding and scores": scored - final,
        "exit": seconds - scored,
    }


_HEADER = (
    "",
    "BLEU by seed",
    "mean",
    "updates",
    "training, s",
    "warm-up, s",
    "whole command, s",
    "gap",
)


def to_markdown(facts: dict[str, Any]) -> str:
    """Return a table of all rows, with what was run and where above it."""
    lines = [
        *heading("Multi30k English-German, test 2016", facts),
        f"Tokenised, lower-cased BLEU; published: {facts['published_bleu']}. Training: all epochs, "
        "from the first batch to the last loss of each; warm-up: compiling and capturing before "
        "it; the whole command: imports, data, checkpoints, validations and final decoding too.",
        "",
        f"| {' | '.join(_HEADER)} |",
        "|" + "---|" * len(_HEADER),
        *(f"| {' | '.join(_cells(row))} |" for row in facts["rows"]),
        "",
        "```",
        f"gapless train --data DIR {' '.join(facts['recipe'])}",
        "```",
        "",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    runs = [run for run in row["runs"] if not run["problem"]]
    problems = [f"seed {run['seed']}: {run['problem']}" for run in row["runs"] if run["problem"]]
    title = "; ".join([row["title"], *problems])
    if not runs:
        return [title, *["-"] * (len(_HEADER) - 1)]
    column = partial(_column, runs)
    return [
        title,
        ", ".join(f"{run['bleu']:.2f}" for run in runs),
        f"{mean(run['bleu'] for run in runs):.2f}",
        ", ".join(sorted({f"{run['steps']:,}" for run in runs})),
        column("train_seconds", "{:.1f}"),
        column("warm_up_seconds", "{:.1f}"),
        column("seconds", "{:.1f}"),
        column("gap_share", "{:.1%}"),
    ]


def _column(runs: list[dict[str, Any]], name: str, form: str) -> str:
    return ", ".join("-" if run[name] is None else form.format(run[name]) for run in runs)


def write(stem: Path, facts: dict[str, Any]) -> None:
    """Write what there is so far, as JSON and as a table."""
    replace_text(stem.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    replace_text(stem.with_suffix(".md"), to_markdown(facts))


if __name__ == "__main__":
    sys.exit(main())
