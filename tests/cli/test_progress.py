"""Progress on a terminal and on a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from gapless.cli import progress as shown
from gapless.records.epoch_record import EpochRecord, Progress
from gapless.records.training import TrainingEpoch
from gapless.records.wait_stats import WaitStats


EPOCH = TrainingEpoch(
    number=1,
    work=EpochRecord(
        num_batches=4,
        mean_loss=2.5,
        weight=4000,
        waits=WaitStats.of_dict({"epoch_end": {"count": 1, "ms": 3.0}}),
        data_wait_ms=8.0,
        launch_ms=16.0,
        wall_ms=2000.0,
        busy_ms=90.0,
        gap_ms=10.0,
    ),
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
    observer.epoch_ended(EPOCH)
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


class Terminal(io.StringIO):
    """Keeps what is written, in an encoding of its own."""

    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding


def on_screen(written):
    """Return the line that a terminal shows after these characters."""
    return written.split("\r\x1b[K")[-1]


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "━"), ("ascii", "=")])
def test_a_bar_is_one_line_that_is_written_over(monkeypatch, encoding, mark):
    """It fits the terminal and its encoding, and closing it leaves nothing behind."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(shown, "_BAR_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal(encoding))
    bar = shown.StepBar("steps")

    bar.show("half", 2, of=4)
    half = on_screen(sys.stderr.getvalue())
    bar.show("a title longer than the whole terminal is wide: " * 2, 4, of=4)
    cut = on_screen(sys.stderr.getvalue())
    bar.close()

    assert half == f"half {mark * 20}{' ' * 20} 2/4 steps"
    assert len(cut) == 59
    assert on_screen(sys.stderr.getvalue()) == ""
    assert "\n" not in sys.stderr.getvalue()


def test_a_bar_is_drawn_a_few_times_a_second_at_most(monkeypatch):
    """A new title is shown at once; steps in between are not."""
    monkeypatch.setattr(shown, "_BAR_SECONDS", 3600.0)
    monkeypatch.setattr(sys, "stderr", Terminal("utf-8"))
    bar = shown.StepBar("steps")
    for step in range(100):
        bar.show("first", step, of=100)
    bar.show("second", 0, of=100)

    drawn = sys.stderr.getvalue().split("\r\x1b[K")[1:]
    assert [line.split()[0] for line in drawn] == ["first", "second"]


def test_an_error_leaves_no_bar_behind(monkeypatch):
    """What Python or the command prints next begins on a line of its own."""
    monkeypatch.setattr(sys, "stdout", Terminal("utf-8"))

    with pytest.raises(ValueError, match="broken"), shown.TerminalObserver() as observer:
        observer.epoch_started(1, num_batches=4, num_epochs=2)
        observer.noted("a line above the bar")
        before = sys.stdout.getvalue()
        raise ValueError("broken")

    assert on_screen(before).startswith("epoch 1/2 ")
    assert "\r\x1b[Ka line above the bar\n\r\x1b[Kepoch 1/2 " in before
    assert on_screen(sys.stdout.getvalue()) == ""


def test_a_terminal_gets_a_bar(tiny_data, process, terminal):
    """The real command on a real terminal draws a bar and ends in the scores."""
    screen, read = terminal
    # Large enough for an epoch that lasts longer than the bar waits before it is drawn.
    sizes = ["--d-model", "128", "--heads", "4", "--ffn", "512", "--encoder-layers", "3"]
    rest = ["--decoder-layers", "3", "--vocab-size", "300", "--device", "cpu", "--epochs", "1"]
    done = process(
        *("train", "--data", tiny_data, *sizes, *rest, "--batch-size", "1"),
        stdout=screen,
        stderr=screen,
    )
    seen = read()

    assert done.returncode == 0, seen
    assert "━" in seen
    assert "exact match" in seen
