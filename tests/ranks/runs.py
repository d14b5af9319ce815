"""Tiny runs of `gapless train` on several ranks, and what is to be equal of two."""

from __future__ import annotations

import json
import signal

from faults.runs import newest_step, tensors_in, train_options


SAVE_EVERY = 10

# All batches have one shape, and nothing is drawn that differs by rank: an update is then the same
# whether two ranks make a batch each, or one rank makes both.
ONE_SHAPE = ["--pack", "--batch-tokens", 32, "--dropout", 0, "--no-compile"]


def options(data, run, *, epochs=4, save_every=SAVE_EVERY, **more):
    """Return the program and the arguments that start a run."""
    return ["gapless", *train_options(data, run, epochs=epochs, save_every=save_every, **more)]


def resume_options(run):
    """Return the program and the arguments that go on with a run."""
    return ["gapless", "train", "--resume", run]


def kill_when_saved(group, run, *, update=SAVE_EVERY):
    """Kill all ranks of a run as soon as it has saved the state of an update, or a later one."""
    group.until(lambda: newest_step(run) >= update, what=f"update {update} was saved")
    for rank in range(group.world):
        group.send(rank, signal.SIGKILL)
    group.end()


def final_weights(run):
    """Return the final weights of a run, bit for bit."""
    return tensors_in(run / "checkpoints" / "final")


def validations(run):
    """Return what each validation and the last test found: losses and scores."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    names = ("val_loss", "val_bleu", "val_exact_match", "bleu", "chrf")
    return [
        {name: row[name] for name in names if name in row}
        for row in rows
        if row["kind"] != "train"
    ]


def summary(run):
    """Return the summary of a finished run."""
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))
