"""Progress on a terminal and on a pipe."""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections import Counter

import pytest
import torch

from gapless.cli import bar, progress as shown
from gapless.loop.train_loop import TrainLoop
from gapless.records.epoch_record import Progress
from gapless.records.training import RunProgress
from gapless.testing import SimulatedDevice, count_waits
from toys import made_up_epoch


def queue(observer, *, batch, **changes):
    """Tell an observer of a batch; without changes, its loss was read."""
    values = {"loss": 3.5, "mean_loss": 3.25, "weight": 1000.0 * batch, **changes}
    progress = Progress(batch=batch, **values)
    run = RunProgress(num_updates=batch, total_updates=8, learning_rate=1e-3, seconds_left=62.0)
    observer.batch_queued(progress, run=run)


@pytest.fixture
def always_due(monkeypatch):
    """Let everything that is told be shown."""
    monkeypatch.setattr(shown, "_LINE_SECONDS", (0.0, 1e-9))
    monkeypatch.setattr(bar.Timer, "is_due", lambda timer: True)


class Terminal(io.StringIO):
    """Keeps what is written."""

    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Puts a terminal of 80 columns in the place of standard output.

    By the test itself: pytest takes standard output back when a fixture is done.
    """

    def call():
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "stdout", Terminal())
        return sys.stdout

    return call


def on_screen(written):
    """Return the line that a terminal shows after these characters."""
    return written.split("\r\x1b[K")[-1]


@pytest.mark.parametrize("kind", [shown.PlainObserver, shown.TerminalObserver])
def test_a_run_is_told_in_order(kind, capsys, always_due):
    """What is in force, decisions, each batch, and a line for each epoch."""
    observer = kind()
    observer.started({"run": "runs/x", "plan": "gapless"})
    for done in range(4):
        observer.capturing_ahead(done, of=3)
    observer.noted("auto: launch-bound")
    observer.epoch_started(
        1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
    )
    for batch in range(1, 5):
        queue(observer, batch=batch)
    observer.validating()
    observer.validated({"val_bleu": 12.3})
    observer.epoch_ended(made_up_epoch(epoch=1, validation={"val_bleu": 12.3}))
    observer.epoch_started(
        2, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
    )
    queue(observer, batch=1)
    observer.testing(12)

    out = capsys.readouterr().out
    told = ["runs/x", "auto: launch-bound", "loss 3.50  mean 3.25  lr 1.0e-3", "epoch 1/2  loss"]
    told += ["BLEU 12.30  3.0k tok/s  gap 10.0%\n", "BLEU 12.3  ETA 1:02", "12 test sentences"]
    places = [out.find(part) for part in told]
    assert -1 not in places
    assert places == sorted(places)
    # It stands at the end of the run.
    assert "host waits" not in out
    if kind is shown.PlainObserver:
        assert out.count("prepared 3 shapes\n") == 1
        assert "\x1b" not in out
        assert out.count("epoch 1/2  batch ") == 4


@pytest.mark.parametrize("kind", [shown.PlainObserver, shown.TerminalObserver])
def test_there_is_a_loss_from_the_first_read_on(kind, capsys, always_due):
    """Before it, the batch that is waited for; in the next epoch, the newest of this one."""
    observer = kind()
    observer.epoch_started(
        1, num_epochs=2, num_batches=4, num_done=0, first_read=3, earlier_loss=None
    )
    for batch, loss in ((2, None), (3, 3.5)):
        queue(observer, batch=batch, loss=loss, mean_loss=loss)
    observer.epoch_started(
        2, num_epochs=2, num_batches=4, num_done=0, first_read=3, earlier_loss=3.75
    )
    queue(observer, batch=1, loss=None, mean_loss=None)

    first, *_, last = [
        line for line in re.split(r"[\r\n]", capsys.readouterr().out) if "loss" in line
    ]
    assert "  loss after batch 3  lr" in first
    assert "  loss 3.75  lr" in last


@pytest.mark.parametrize("kind", [shown.PlainObserver, shown.TerminalObserver])
def test_waits_are_shown_after_each_epoch_where_that_was_asked_for(kind, capsys):
    """The account of that epoch, below its line."""
    observer = kind(waits_each_epoch=True)
    observer.epoch_started(
        1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
    )
    observer.epoch_ended(made_up_epoch())

    out = capsys.readouterr().out
    assert out.index("tok/s") < out.index("host waits") < out.index("epoch_end  ")


@pytest.mark.parametrize("kind", [shown.PlainObserver, shown.TerminalObserver])
def test_an_epoch_that_was_done_before_has_no_line(kind, capsys):
    """A finished run that is resumed closes its last part once more, and trains nothing."""
    observer = kind(waits_each_epoch=True)
    observer.validating()
    observer.epoch_ended(made_up_epoch())

    out = capsys.readouterr().out
    assert "epoch" not in out
    assert "tok/s" not in out


def test_lines_of_a_file_become_rarer(capsys, monkeypatch):
    """One every ten seconds for ten minutes, and one a minute after an hour."""
    now = [0.0]
    monkeypatch.setattr(bar, "perf_counter", lambda: now[0])
    monkeypatch.setattr(shown, "perf_counter", lambda: now[0])
    observer = shown.PlainObserver()
    observer.epoch_started(
        1, num_epochs=2, num_batches=10**6, num_done=0, first_read=4, earlier_loss=None
    )
    counts = []
    for _ in range(8):
        for batch in range(600):
            now[0] += 1.0
            queue(observer, batch=batch + 1)
        counts.append(capsys.readouterr().out.count("\n"))

    assert counts[0] == 60
    assert counts[-1] == 10


def test_the_speed_is_that_of_the_newest_read(open_terminal, always_due, monkeypatch):
    """Time that has passed since does not count: its tokens are not known yet."""
    stdout = open_terminal()
    now = [0.0]
    monkeypatch.setattr(shown, "perf_counter", lambda: now[0])
    observer = shown.TerminalObserver()
    observer.epoch_started(
        1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
    )
    for batch, seconds in ((1, 2.0), (2, 50.0)):
        now[0] = seconds
        queue(observer, batch=batch, weight=4000.0)

    assert "  2.0k tok/s" in on_screen(stdout.getvalue())


def test_a_bar_is_one_line_that_is_written_over(monkeypatch):
    """It fits the terminal, and closing it leaves nothing behind."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(bar, "BAR_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    steps = bar.StepBar("steps")

    steps.show("half", 2, of=4)
    half = on_screen(sys.stderr.getvalue())
    steps.show("名字很长的工作负载" * 4, 4, of=4)
    cut = on_screen(sys.stderr.getvalue())
    steps.close()

    assert half == f"half {'=' * 20}{'-' * 20} 2/4 steps"
    # Each of its characters takes two columns of the 57.
    assert len(cut) == 28
    assert on_screen(sys.stderr.getvalue()) == ""
    assert "\n" not in sys.stderr.getvalue()


def test_a_bar_is_drawn_a_few_times_a_second_at_most(monkeypatch):
    """A new title is shown at once; steps in between are not."""
    monkeypatch.setattr(bar, "BAR_SECONDS", 3600.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    steps = bar.StepBar("steps")
    for step in range(100):
        steps.show("first", step, of=100)
    steps.show("second", 0, of=100)

    drawn = sys.stderr.getvalue().split("\r\x1b[K")[1:]
    assert [line.split()[0] for line in drawn] == ["first", "second"]


def test_an_error_leaves_no_bar_behind(open_terminal):
    """What Python or the command prints next begins on a line of its own."""
    stdout = open_terminal()
    with pytest.raises(ValueError, match="broken"), shown.TerminalObserver() as observer:
        observer.epoch_started(
            1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
        )
        observer.noted("a line above the bar")
        before = stdout.getvalue()
        raise ValueError("broken")

    assert on_screen(before).startswith("epoch 1/2")
    assert "\r\x1b[Ka line above the bar\n\r\x1b[Kepoch 1/2" in before
    assert on_screen(stdout.getvalue()) == ""


def test_a_warning_of_a_library_stands_above_the_bar(open_terminal, monkeypatch):
    """In a line of its own; and the bar comes back below it."""
    stdout = open_terminal()

    def show(message, *_):
        stdout.write(f"{message}\n")

    with monkeypatch.context() as patch:
        patch.setattr(warnings, "showwarning", show)
        with shown.TerminalObserver() as observer:
            observer.epoch_started(
                1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
            )
            warnings.showwarning("torch may change", UserWarning, "x.py", 3)
            seen = stdout.getvalue()
        is_given_back = warnings.showwarning is show

    assert "epoch 1/2\r\x1b[Ktorch may change\n" in seen
    assert on_screen(seen) == "epoch 1/2"
    assert is_given_back


def test_long_texts_are_broken_at_spaces(open_terminal):
    """Facts go on below their text, and no line is wider than the terminal."""
    stdout = open_terminal()
    observer = shown.TerminalObserver()
    observer.started({"plan": "short", "data": "many words " * 20})

    lines = stdout.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("      words many")


def counted_waits(plan, observer):
    """Return the host waits of an epoch on a simulated device, by call and by reason."""
    weight = torch.ones(1)

    def show(progress):
        queue(observer, batch=progress.batch, **{name: getattr(progress, name) for name in READ})

    on_batch = None if observer is None else show
    with (
        SimulatedDevice(scheduler="asap") as device,
        count_waits(device) as waits,
        TrainLoop(plan=plan, device=device) as loop,
    ):
        loop.run_epoch([weight] * 40, lambda batch: batch.sum(), on_batch=on_batch)
    return Counter(call for call, _ in waits.by_site.elements()), waits.by_reason


READ = ("loss", "mean_loss", "weight", "waits", "gap_share")


@pytest.mark.parametrize("plan", ["gapless", "deferred-loss"])
def test_showing_progress_makes_nobody_wait_for_the_device(open_terminal, always_due, plan):
    """A loop that shows the loss of each batch waits as often as one that shows nothing."""
    stdout = open_terminal()
    without = counted_waits(plan, None)
    observer = shown.TerminalObserver()

    assert without == counted_waits(plan, observer)
    assert (without[0].total() > 0) == (plan == "deferred-loss")
    assert "loss 1.00  mean 1.00  lr" in on_screen(stdout.getvalue())


def test_lines_on_a_terminal_that_cannot_draw_end_where_it_does(open_terminal, always_due):
    """As all that is printed on a terminal; in a file they stay whole."""
    stdout = open_terminal()
    observer = shown.PlainObserver()
    observer.started({"run": "a " * 60})
    observer.noted("b " * 60)
    observer.epoch_started(
        1, num_epochs=2, num_batches=4, num_done=0, first_read=4, earlier_loss=None
    )
    observer.validated({"val_loss": 1.25, "val_bleu": 12.3})
    queue(observer, batch=1)
    observer.epoch_ended(made_up_epoch(epoch=1, validation={"val_bleu": 12.3}))

    assert "mean" in stdout.getvalue()
    assert [line for line in stdout.getvalue().splitlines() if len(line.rstrip()) > 80] == []


def test_a_terminal_that_cannot_draw_gets_lines(open_terminal, monkeypatch):
    """As the shell within an editor, which shows characters of control as they are."""
    monkeypatch.setenv("TERM", "dumb")
    open_terminal()

    assert isinstance(shown.make_observer(), shown.PlainObserver)

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(shown.make_observer(), shown.TerminalObserver)
