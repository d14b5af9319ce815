"""Checkpoint stores with known contents, and the judge of what is loaded from them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch


checkpoint = pytest.importorskip("gapless.checkpoint")
if not hasattr(checkpoint, "CheckpointStore"):
    pytest.skip("gapless.checkpoint has no CheckpointStore yet", allow_module_level=True)

CheckpointStore = checkpoint.CheckpointStore
CheckpointError = checkpoint.CheckpointError
CheckpointWarning = checkpoint.CheckpointWarning


def tensors_of(step, *, size=300):
    """Return the tensors of a step: other values in each step, and the same sizes."""
    draw = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(size, generator=draw),
        "half": torch.randn(7, 3, generator=draw).bfloat16(),
        "count": torch.tensor(step),
    }


def meta_of(step):
    """Return the other contents of a step, as JSON."""
    return {"epoch": step // 100, "position": {"update": step, "order": [step, step + 1]}}


def save_steps(folder, *steps, keep=3, size=300):
    """Save some steps, and return the store."""
    store = CheckpointStore(folder, keep=keep)
    for step in steps:
        store.save(step, tensors_of(step, size=size), meta_of(step))
    return store


def bits(tensor):
    """Return what a tensor is, to the bit: NaNs are equal, and zeros have signs."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def check_same(found, expected):
    """Check that two dictionaries hold the same tensors, bit for bit."""
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if bits(found[name]) != bits(expected[name])] == []


def check_is(loaded, step, *, size=300):
    """Check that a checkpoint is that of a step, with all that was saved."""
    assert loaded is not None, "nothing was loaded"
    assert loaded.step == step
    check_same(loaded.tensors, tensors_of(step, size=size))
    assert loaded.meta == meta_of(step)
    assert loaded.path.name == name_of(step)


def name_of(step):
    return f"step-{step:09d}"


@dataclass(frozen=True)
class Loaded:
    """What a load gave: a checkpoint, none or an error, and the texts of its warnings."""

    checkpoint: object
    error: str | None
    said: list[str]


def load_newest(folder):
    """Load from a folder as a new process would.

    An error that is no CheckpointError gets through, and so does a warning of any other kind.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", CheckpointWarning)
        try:
            loaded, error = CheckpointStore(folder).load_newest(), None
        except CheckpointError as refused:
            loaded, error = None, str(refused)
    return Loaded(loaded, error, [str(one.message) for one in caught])


def check_one_line_names(text, *names):
    """Check that a text is one line that is not too long for a log, and holds every name."""
    assert "\n" not in text.strip()
    assert "Traceback" not in text
    assert [name for name in names if name not in text] == []


def list_problems(folder):
    """Return the problem of each checkpoint by its folder's name, newest last."""
    return {entry.path.name: entry.problem for entry in CheckpointStore(folder).list()}
