"""A run goes on after a power cut at any operation of its saves."""

from __future__ import annotations

import shutil

import pytest

from gapless.checkpoint import files
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.resume import resumed_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.logs import METRICS
from gapless.nmt.settings.config import make_config
from power_cut import PowerCuts, RecordedDisk, put_back
from tiny_run import as_asked


OPERATIONS = (
    *("create", "write", "sync", "close", "make_folder", "sync_folder"),
    *("rename", "exchange", "unlink", "remove_folder"),
)


class Stopping:
    """Stops a run after some batches, and says nothing."""

    def __init__(self, after=None):
        self.left = after
        self.stop = None

    def batch_queued(self, progress, *, run):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.stop.number = 15

    def __getattr__(self, name):
        return lambda *_, **__: None


def go_on(run, *, after=None):
    """Resume a run, to its end or for some batches."""
    from gapless.nmt.run.stopping import StopRequest

    observer = Stopping(after)
    observer.stop = StopRequest()
    config = make_config({}, file=run / "config.yaml")
    return Trainer(resumed_run(config, run), observer=observer).train(stop=observer.stop)


@pytest.fixture
def cut_run(tmp_path):
    """A run that was stopped; what the power may leave of it if cut while it goes on and stops."""
    from gapless.nmt.run.stopping import StopRequest

    rows = [" ".join("abcdefgh"[n % 8 : n % 8 + 3]) for n in range(60)]
    (tmp_path / "d.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    settings = {
        "data": str(tmp_path / "d.tsv"),
        "columns": "en,zh",
        "tokenizer": "none",
        "device": "cpu",
        "workers": 0,
        "d_model": 4,
        "heads": 2,
        "ffn": 4,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "batch_size": 8,
        "dropout": 0.3,
        "epochs": 2,
        "warmup": 5,
        "average": 2,
        "keep": 2,
        "save_every": "3",
        "max_length": 20,
        "vocab_size": None,
    }
    observer = Stopping(4)
    observer.stop = StopRequest()
    run = tmp_path / "run"
    config = make_config({**settings, "run_dir": str(run)})
    Trainer(new_run(as_asked(config)), observer=observer).train(stop=observer.stop)
    shutil.copytree(run, tmp_path / "whole")
    return run, tmp_path / "whole"


def check_every_cut(tmp_path, monkeypatch, cut_run, **options):
    run, whole = cut_run
    of_whole = go_on(whole)
    disk = RecordedDisk(run)
    with monkeypatch.context() as patched:
        for name in OPERATIONS:
            # Not setattr, which would leave its own methods in the disk instead of those of its class.
            patched.setitem(vars(files.DISK), name, getattr(disk, name))
        go_on(run, after=2)
    metrics = (run / METRICS).read_bytes()
    after, resumed = tmp_path / "after", {}
    for found in PowerCuts(disk, **options):
        after.mkdir()
        put_back(found, after)
        damaged = []
        saved, _ = checkpoints.load_state(after, on_damaged=damaged.append)
        assert damaged == []
        if saved.step not in resumed:
            # What is synced of it covers every state that is there.
            (after / METRICS).write_bytes(metrics)
            resumed[saved.step] = go_on(after)
            final = "checkpoints/final/tensors.safetensors"
            assert (after / final).read_bytes() == (whole / final).read_bytes()
        shutil.rmtree(after)

    assert len(resumed) > 1
    assert all(summary["loss"] == of_whole["loss"] for summary in resumed.values())


@pytest.mark.slow
def test_every_cut_leaves_a_run_that_can_go_on(tmp_path, monkeypatch, cut_run):
    """From the state before or the new one, with the same bits, and nothing is damaged."""
    check_every_cut(tmp_path, monkeypatch, cut_run, exhaustive=1, samples=0)


@pytest.mark.slow
def test_many_cuts_leave_a_run_that_can_go_on(tmp_path, monkeypatch, cut_run):
    """The same with as many combinations as it takes hours to see by chance."""
    check_every_cut(tmp_path, monkeypatch, cut_run, samples=60)
