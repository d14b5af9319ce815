"""Which folder a new run takes where other processes take one at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.checkpoint.lock import RunLock
from gapless.errors import RunFolderError, RunLockedError
from gapless.nmt.run import new_run
from gapless.nmt.run_folder.folder import LOCK
from gapless.nmt.settings.config import make_config
from tiny_run import as_asked


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings of a small run in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    rows = [f"a {n} b\tb {n} a\n" for n in range(30)]
    Path("d.tsv").write_text("".join(rows))
    sizes = {"d_model": 16, "heads": 2, "ffn": 16, "encoder_layers": 1, "decoder_layers": 1}
    run = {"data": "d.tsv", "columns": "en,zh", "tokenizer": "none", "device": "cpu", "workers": 0}
    return {**run, **sizes}


@pytest.fixture
def taken(monkeypatch):
    """Let others take folders after a run has chosen one, each in a way; their locks, in order."""
    choose = new_run.choose_run_dir
    ways, locks = [], []

    def choose_late(config):
        path = choose(config)
        if ways:
            lock = RunLock(path / LOCK)
            path.mkdir(parents=True)
            lock.acquire()
            locks.append(lock)
            if ways.pop(0) == "ended":
                (path / "config.yaml").write_text("seed: 1\n")
                lock.release()
        return path

    monkeypatch.setattr(new_run, "choose_run_dir", choose_late)
    yield ways
    for lock in locks:
        lock.release()


def test_runs_that_begin_at_once_take_the_next_free_folder(settings, taken):
    """Whether the others still run or have ended."""
    taken += ["running", "ended", "running"]
    run = new_run.new_run(as_asked(make_config(settings)))
    run.lock.release()

    assert run.run_dir == Path("runs/train4")
    assert run.lock.path == Path("runs/train4/lock")
    assert Path("runs/train4/config.yaml").is_file()
    assert not Path("runs/train/config.yaml").exists()


@pytest.mark.parametrize(
    ("way", "error"), [("running", RunLockedError), ("ended", RunFolderError)]
)
def test_a_folder_that_was_named_is_no_other(settings, taken, way, error):
    """The run is refused, and its user takes another one."""
    taken.append(way)
    with pytest.raises(error, match="mine"):
        new_run.new_run(as_asked(make_config({**settings, "run_dir": "mine"})))


def test_no_folder_can_be_made(settings):
    """A file in its place is named; nothing is tried again and again."""
    Path("runs").write_text("")
    with pytest.raises(RunFolderError, match="runs is no folder"):
        new_run.new_run(as_asked(make_config(settings)))
