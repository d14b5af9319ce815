"""Tiny runs of `gapless train`: their data, their options, and what is to be equal of two."""

from __future__ import annotations

import json
import random

import pytest
import safetensors
import torch


# A run of these options makes 30 updates in an epoch, about 3 ms each.
SIZES = [
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--tokenizer", "none", "--device", "cpu", "--warmup", "5"),
    *("--max-length", "12", "--beam", "1", "--dropout", "0.2", "--lr", "0.01"),
    *("--schedule", "inverse-sqrt", "--average", "5", "--val-interval", "1", "--no-shared-vocab"),
]
BATCHES = ["--batch-size", "8", "--deterministic"]
UPDATES = 30

WORDS = ["red", "blue", "tree", "dog", "cat", "run", "sees", "big", "old", "new", "man", "sun"]

# What differs between two equal runs: times, and what is made of them.
OF_TIME = {
    *("tokens_per_second", "gap_share", "seconds", "wall_seconds", "time"),
    *("wall_ms", "data_wait_ms", "launch_ms", "busy_ms", "wait_ms", "peak_memory_bytes"),
    # Only a GPU has them.
    *("gap_ms", "busy_share"),
    # An epoch in two parts has a wait at the end of each.
    *("waits", "num_waits"),
}


def write_data(folder, *, train=8 * UPDATES, seed=3, words=WORDS):
    """Write parallel text of three splits: the target is the source reversed, in capitals."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    for split, count in (("train", train), ("val", 6), ("test", 6)):
        rows = [[draw.choice(words) for _ in range(draw.randint(2, 6))] for _ in range(count)]
        texts = {
            "en": "".join(" ".join(row) + "\n" for row in rows),
            "zh": "".join(" ".join(word.upper() for word in reversed(row)) + "\n" for row in rows),
        }
        for side, text in texts.items():
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    return folder


def train_options(data, run, *, epochs=3, save_every=20, workers=0, plan="gapless"):
    """Return the arguments that start a run."""
    return [
        *("train", "--data", data, "--run-dir", run, *SIZES, *BATCHES),
        *("--epochs", epochs, "--save-every", save_every, "--workers", workers, "--plan", plan),
    ]


def checkpoints(run):
    """Return the names of the full states of a run, newest last."""
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def newest_step(run):
    """Return the update of the newest full state; 0 if there is none."""
    names = checkpoints(run)
    return int(names[-1].removeprefix("step-")) if names else 0


def is_saving(run):
    """Whether a save is under way: its temporary folder is there."""
    return any((run / "checkpoints").glob(".step-*.tmp"))


def tensors_in(folder):
    """Return all tensors of a checkpoint folder, bit for bit."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                raw = file.get_tensor(name)
                flat = raw.contiguous().reshape(-1).view(torch.uint8)
                found[f"{path.name}:{name}"] = (
                    raw.dtype,
                    tuple(raw.shape),
                    flat.numpy().tobytes(),
                )
    assert found, f"{folder} holds no tensors"
    return found


def history(run):
    """Return all that a run wrote down, without times."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{key: value for key, value in row.items() if key not in OF_TIME} for row in rows]


def differences(run, reference):
    """Return in what a finished run differs from another: nothing, if it is the same."""
    found = []
    if not (run / "checkpoints" / "final").is_dir():
        return ["it has no final weights"]
    if tensors_in(run / "checkpoints" / "final") != tensors_in(
        reference / "checkpoints" / "final"
    ):
        found.append("its final weights")
    newest = [path / "checkpoints" / checkpoints(path)[-1] for path in (run, reference)]
    states = [tensors_in(path) for path in newest]
    if newest[0].name != newest[1].name:
        found.append(f"its newest state is {newest[0].name}, not {newest[1].name}")
    elif states[0] != states[1]:
        names = [name for name in states[1] if states[0].get(name) != states[1][name]]
        found.append(f"its newest state: {', '.join(names[:5])}")
    rows = history(run), history(reference)
    if rows[0] != rows[1]:
        at = next(
            (n for n, pair in enumerate(zip(*rows, strict=False)) if pair[0] != pair[1]),
            min(map(len, rows)),
        )
        found.append(f"its history from line {at + 1} of {len(rows[0])} and {len(rows[1])}")
    summaries = [json.loads((one / "summary.json").read_text()) for one in (run, reference)]
    for key in ("loss", "steps", "epochs", "batches", "target_tokens", "bleu", "exact_match"):
        if summaries[0].get(key) != summaries[1].get(key):
            found.append(f"its summary's {key}")
    return found


def check_same_run(run, reference):
    """Check that a run ended with the bits and the history of another."""
    found = differences(run, reference)
    if found:
        pytest.fail(f"{run.name} differs: {', '.join(found)}")
