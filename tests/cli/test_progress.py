"""Progress on a terminal and on a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.cli import progress as shown
from gapless.records.epoch_record import EpochRecord, Progress


SRC = str(Path(__file__).parents[2] / "src")

RECORD = EpochRecord(
    epoch=1,
    loss=2.5,
    num_batches=4,
    target_tokens=4000,
    wall_ms=2000.0,
    waits={"epoch_end": {"count": 1, "ms": 3.0}},
    data_wait_ms=8.0,
    launch_ms=16.0,
    busy_ms=90.0,
    gap_ms=10.0,
    peak_memory_bytes=3 << 20,
    validation={"val_loss": 1.5},
)


@pytest.mark.parametrize("kind", [shown.PlainObserver, shown.TerminalObserver])
def test_an_epoch_ends_in_its_account(kind, capsys, monkeypatch):
    """Step, loss, speed, waits, gap and time left are shown, then the table of the epoch."""
    monkeypatch.setattr(shown, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(shown, "_BAR_SECONDS", 0.0)
    observer = kind()
    observer.started({"run": "runs/x", "plan": "gapless"})
    for done in range(4):
        observer.capturing_ahead(done, of=3)
    observer.noted("auto: launch-bound")
    observer.epoch_started(1, num_batches=4, num_epochs=2)
    for batch in range(1, 5):
        progress = Progress(batch=batch, mean_loss=3.25, weight=1000.0 * batch, gap_share=0.125)
        observer.batch_queued(progress, num_updates=batch)
    observer.epoch_ended(RECORD)
    observer.testing(12)

    out = capsys.readouterr().out
    for part in (
        "runs/x",
        "auto: launch-bound",
        "epoch_end",
        "data wait",
        "launch",
        "device busy",
        "gap 10.0%",
    ):
        assert part in out
    assert "2,000 target tokens/s" in out
    assert "peak memory 3 MiB" in out
    assert "12 test sentences" in out
    if kind is shown.PlainObserver:
        assert out.count("prepared 3 shapes\n") == 1
        assert "step 4  loss 3.2500" in out
        assert "0.00 waits/batch  gap 12.5%  epoch ends in 0:00:0" in out


def test_a_terminal_gets_a_bar(tiny_data, tmp_path):
    """The real command on a real terminal draws a bar and ends in the scores."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "gapless", "train", "--data", str(tiny_data)]
    sizes = ["--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"]
    rest = ["--decoder-layers", "1", "--vocab-size", "300", "--device", "cpu", "--epochs", "1"]
    environment = {**os.environ, "PYTHONPATH": SRC, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [*command, *sizes, *rest, "--batch-size", "1"],
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env=environment,
    ) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the terminal is gone with its last process
                break
            if not part:
                break
            seen += part
    os.close(master)

    assert process.returncode == 0, seen.decode()
    assert "━".encode() in seen
    assert b"exact match" in seen
