"""Where memory is short, a run says in which phase, for what, and what to lower."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gapless.device.memory_errors import asked_bytes, is_out_of_memory
from gapless.errors import OutOfMemoryError
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.out_of_memory import naming_phase
from gapless.nmt.run.trainer import Trainer
from tiny_run import as_asked, tiny_config


OF_CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.25 GiB of "
    "which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB in use."
)
OF_CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 14400000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (torch.OutOfMemoryError(OF_CUDA), 5 << 29),
        (RuntimeError(OF_CPU), 14_400_000_000),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"),
            None,
        ),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            None,
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), None),
        (MemoryError(), None),
    ],
)
def test_errors_for_want_of_memory(error, asked):
    """Whoever raises them, they are known, and so are the bytes where they are named."""
    assert is_out_of_memory(error)
    assert asked_bytes(error) == asked


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory")])
def test_other_errors(error):
    """An error for another reason is left alone."""
    assert not is_out_of_memory(error)


class Silent:
    def __getattr__(self, name):
        return lambda *_, **__: None


def fail(*_, **__):
    raise torch.OutOfMemoryError(OF_CUDA)


ROOM = "gapless.nmt.run."
PLACES = {
    "building the model": ("new_run.assemble", "`d_model`"),
    "training": ("training_step.TranslationStep.backward", "`batch_tokens`"),
    "validating": ("training_step.TranslationStep.evaluate", "`batch_tokens`"),
    "translating the test sentences": ("trainer.score_test", "`beam`"),
}


@pytest.mark.parametrize("phase", PLACES)
def test_each_phase_is_named(tmp_path, monkeypatch, phase):
    """The one line has phase, bytes, shape, memory of graphs, and the settings to lower."""
    place, lower = PLACES[phase]
    (tmp_path / "d.tsv").write_text("".join(f"a b c {n}\tA B {n}\n" for n in range(40)))
    config = tiny_config(tmp_path, batch_size=4)
    monkeypatch.setattr(ROOM + place, fail)
    held = SimpleNamespace(captured_bytes=12_345, refusal=None, note=None)
    monkeypatch.setattr(TrainLoop, "capture_report", held)

    with pytest.raises(OutOfMemoryError) as caught:
        Trainer(new_run(as_asked(config)), observer=Silent()).train()

    text = str(caught.value)
    assert text.startswith(f"out of memory while {phase}: 2,684,354,560 bytes were asked for")
    assert "1.10 GiB of 79.25 GiB are free" in text
    assert lower in text
    if lower == "`batch_tokens`":
        assert "for a batch of " in text
        assert "while captured graphs hold 12,345 bytes" in text


def test_an_error_of_python_that_says_nothing():
    """The line has no gap where others name a size."""
    with (
        pytest.raises(OutOfMemoryError, match="while training: the host has no more; lower x"),
        naming_phase("training", lower="x"),
    ):
        raise MemoryError
