"""Commands of gapless as real processes, and what they leave in a run's folder."""

from __future__ import annotations

import json

from translation_at_scale.corpora import pairs, write_tsv


TINY = [
    *("--src", "en", "--tgt", "de", "--d-model", 32, "--heads", 4, "--ffn", 64),
    *("--encoder-layers", 1, "--decoder-layers", 1, "--dropout", 0, "--batch-tokens", 512),
    *("--workers", 0, "--deterministic", "--device", "cpu", "--average", 1),
]
WORDS = ["--tokenizer", "none"]
SUBWORDS = ["--vocab-size", 330]


class Commands:
    """Commands of gapless in a folder: what a user types there."""

    def __init__(self, launcher, folder):
        self._launcher = launcher
        self.folder = folder

    def __call__(self, *arguments, **options):
        """Run a command to its end, which must be well; return how it ended."""
        ended = self.fails(*arguments, **options)
        ended.check_done()
        return ended

    def fails(self, *arguments, **options):
        """Run a command to its end, whatever that is."""
        return self._launcher.run(*arguments, folder=self.folder, **options)

    def start(self, *arguments, **options):
        """Start a command with Python begun anew, to be killed."""
        return self._launcher.start(*arguments, folder=self.folder, real=True, **options)

    def train(self, data, run, *options, **others):
        """Train a tiny model; `data` is a path, or options that name corpora."""
        data = data if isinstance(data, list) else ["--data", data]
        return self("train", *data, "--run-dir", run, *TINY, *options, **others)

    def translate(self, run, lines, *options):
        """Return the lines that `gapless translate` prints for these."""
        path = self.folder / "lines.txt"
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        options = ["--device", "cpu", *options]
        return self("translate", run, "--file", path, *options).out.splitlines()

    def n_best(self, run, lines, *options):
        """Return the hypotheses of each line, best first, as text and score."""
        found = [[] for _ in lines]
        for row in self.translate(run, lines, *options):
            number, text, score = row.split(" ||| ")
            found[int(number)].append((text, float(score)))
        return found


def trained(commands, name, *options):
    """Train on 600 pairs; return the run's folder."""
    data = commands.folder / "pairs.tsv"
    if not data.exists():
        write_tsv(data, pairs(600))
    commands.train(data, name, *options, "--val-interval", 100)
    return commands.folder / name


def metrics(run, *, kind=None):
    """Return the lines of a run's metrics."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if kind in (None, row["kind"])]


def losses(run):
    """Return losses and tokens of all updates, as read back to the last bit, and of all validations."""
    updates = {row["step"]: (row["loss"], row["tokens"]) for row in metrics(run, kind="train")}
    return updates, [row["val_loss"] for row in metrics(run, kind="epoch") if "val_loss" in row]


def weights(run, checkpoint="final"):
    """Return the bytes of a checkpoint's weights."""
    return (run / "checkpoints" / checkpoint / "tensors.safetensors").read_bytes()
