"""Toys of translation runs: settings and text of a run that takes a second on a CPU, and its observers."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from gapless.nmt.run.initial_weights import read_initial_weights
from gapless.nmt.run.new_run import ChosenRun
from gapless.nmt.run.stopping import WallClock
from gapless.nmt.run.task import prepare
from gapless.nmt.settings.config import make_config


def tiny_config(folder, **settings):
    """Return the settings of a run on `d.tsv` of a folder, in its `run`, with others in their place."""
    return make_config(
        {
            "data": str(folder / "d.tsv"),
            "columns": "en,zh",
            "tokenizer": "none",
            "device": "cpu",
            "workers": 0,
            "d_model": 8,
            "heads": 2,
            "ffn": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "epochs": 1,
            "run_dir": str(folder / "run"),
            **settings,
        }
    )


def as_asked(config):
    """Return a new run with these settings, of which none was chosen."""
    initial = config.init_from and read_initial_weights(Path(config.init_from))
    task = prepare(config, vocabs=initial and initial.vocabs)
    return ChosenRun(config=config, choices=[], task=task, clock=WallClock(), initial=initial)


def write_letters(path, *, letters="abcdefgh", count=60, seed=1):
    """Write a table of pairs without a header: a few letters, and the same ones backwards."""
    draw = random.Random(seed)
    rows = [
        " ".join(draw.choice(letters) for _ in range(draw.randint(2, 7))) for _ in range(count)
    ]
    path.write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    return path


class Silent:
    """Says nothing of a run."""

    def __getattr__(self, name):
        return lambda *_, **__: None


class Stopping(Silent):
    """Sends a signal to this process after some batches; None: never."""

    def __init__(self, after=None, *, number=signal.SIGTERM):
        self.left = after
        self.number = number

    def batch_queued(self, *_, **__):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)
