"""What `gapless.nmt` offers, and what importing it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gapless.nmt


def printed_by(code):
    """Return what a process of its own prints that runs this code."""
    source = str(Path(gapless.nmt.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    return done.stdout.strip()


def test_every_public_name_of_nmt_can_be_loaded():
    """`dir(gapless.nmt)` lists them; each can be loaded, and no other."""
    names = [
        "Batch",
        "LossCompute",
        "Sampling",
        "StreamManager",
        "Translator",
        "run_epoch",
        "write_pairs",
    ]
    assert dir(gapless.nmt) == names
    assert all(getattr(gapless.nmt, name) is not None for name in dir(gapless.nmt))
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = gapless.nmt.nothing


def test_importing_nmt_loads_neither_torch_nor_what_the_trainer_needs():
    """`import gapless.nmt` alone loads no torch, numpy, sentencepiece, sacrebleu or yaml."""
    code = (
        "import sys, gapless.nmt; "
        "print(sorted({'torch', 'numpy', 'sentencepiece', 'sacrebleu', 'yaml'} & set(sys.modules)))"
    )

    assert printed_by(code) == "[]"


def test_streams_and_the_loop_need_no_extra():
    """`StreamManager` and `run_epoch` of `gapless.nmt` load with torch alone."""
    code = (
        "import sys; from gapless.nmt import StreamManager, run_epoch; "
        "print(sorted({'sentencepiece', 'sacrebleu', 'yaml', 'safetensors'} & set(sys.modules)))"
    )

    assert printed_by(code) == "[]"


def test_a_translator_without_the_extra_says_how_to_get_it(monkeypatch):
    """What is missing is named, with the command that installs it."""

    def missing(name):
        raise ModuleNotFoundError(name="sentencepiece")

    monkeypatch.setattr(gapless.nmt, "import_module", missing)

    with pytest.raises(
        ImportError, match=r"^gapless\.nmt\.Translator needs sentencepiece"
    ) as told:
        _ = gapless.nmt.Translator
    assert 'run pip install "gapless[nmt]"' in str(told.value)
