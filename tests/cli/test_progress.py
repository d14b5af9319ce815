"""Progress on a terminal and on a pipe."""

from __future__ import annotations

import io
import multiprocessing
import re
import sys
import threading
import warnings
from collections import Counter

import pytest
import torch

from gapless.cli import progress as shown
from gapless.loop.train_loop import TrainLoop
from gapless.records.epoch_record import Progress
from gapless.records.training import RunProgress
from gapless.report.training_text import EpochTitle
from gapless.testing import SimulatedDevice, count_waits
from terminal.screen import Screen
from toys import made_up_epoch


def begin(observer, *, epoch=1, first_read=4, earlier_loss=None):
    """Tell an observer of an epoch of four batches."""
    title = EpochTitle(
        number=epoch, num_epochs=2, num_batches=4, num_done=0, first_read=first_read,
        earlier_loss=earlier_loss,
    )  # fmt: skip
    observer.epoch_started(title)


def queue(observer, *, batch, **changes):
    """Tell an observer of a batch; without changes, its loss was read."""
    values = {"loss": 3.5, "mean_loss": 3.25, "weight": 1000.0 * batch, **changes}
    progress = Progress(batch=batch, **values)
    run = RunProgress(num_updates=batch, total_updates=8, learning_rate=1e-3, seconds_left=62.0)
    observer.batch_queued(progress, run=run)


@pytest.fixture
def always_due(monkeypatch):
    """Let everything that is told be shown."""
    for name in ("BAR_SECONDS", "LINE_SECONDS", "RARE_LINE_SECONDS"):
        monkeypatch.setattr(shown, name, 1e-9)


@pytest.fixture
def clock(monkeypatch):
    """The time that progress goes by, in a list."""
    now = [0.0]
    monkeypatch.setattr(shown, "perf_counter", lambda: now[0])
    return now


class Terminal(io.StringIO):
    """Shows both outputs, and keeps what was written."""

    def isatty(self):
        return True

    @property
    def screen(self):
        screen = Screen(80)
        screen.feed(self.getvalue().replace("\n", "\r\n"))
        return screen

    def drawn(self):
        """Return every state of every line."""
        shown = self.getvalue().replace("\x1b[K", "")
        return [line.rstrip() for line in re.split(r"[\r\n]", shown) if line.strip()]


@pytest.fixture
def open_terminal(monkeypatch):
    """Puts a terminal of 80 columns in the place of both outputs.

    By the test itself: pytest takes standard output back when a fixture is done.
    """

    def call():
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return call


# ------------------------------------------------------------------------------------------ a run


@pytest.mark.parametrize("has_terminal", [False, True])
def test_a_run_is_told_in_order(has_terminal, open_terminal, capsys, always_due):
    """What is in force, decisions, each batch, and a line for each epoch; a pipe gets plain lines alone."""
    terminal = open_terminal() if has_terminal else None
    with shown.TrainingProgress() as observer:
        observer.started({"run": "runs/x", "plan": "gapless"})
        for done in range(4):
            observer.capturing_ahead(done, of=3)
        observer.noted("auto: launch-bound")
        begin(observer)
        for batch in range(1, 5):
            queue(observer, batch=batch)
        observer.validating()
        observer.validated({"val_bleu": 12.3})
        observer.epoch_ended(made_up_epoch(epoch=1, validation={"val_bleu": 12.3}))
        begin(observer, epoch=2)
        queue(observer, batch=1)
        observer.testing(12)

    out = terminal.getvalue() if terminal else capsys.readouterr().out
    told = [
        "runs/x",
        "prepared 3 shapes\n",
        "auto: launch-bound",
        "loss 3.50  mean 3.25  lr 1.0e-3",
    ]
    told += ["epoch 1/2  loss", "BLEU 12.30  3.0k tok/s  gap 10.0%\n", "BLEU 12.3  ETA 1:02"]
    told += ["12 test sentences"]
    places = [out.find(part) for part in told]
    assert -1 not in places
    assert places == sorted(places)
    # It stands at the end of the run.
    assert "host waits" not in out
    if not has_terminal:
        assert [mark for mark in "\r\x1b\b" if mark in out] == []
        assert out.count("epoch 1/2  batch ") == 4


@pytest.mark.parametrize("has_terminal", [False, True])
def test_there_is_a_loss_from_the_first_read_on(has_terminal, open_terminal, capsys, always_due):
    """Before it, the batch that is waited for; in the next epoch, the newest of this one."""
    terminal = open_terminal() if has_terminal else None
    with shown.TrainingProgress() as observer:
        begin(observer, first_read=3)
        for batch, loss in ((2, None), (3, 3.5)):
            queue(observer, batch=batch, loss=loss, mean_loss=loss)
        begin(observer, epoch=2, first_read=3, earlier_loss=3.75)
        queue(observer, batch=1, loss=None, mean_loss=None)

    lines = terminal.drawn() if terminal else capsys.readouterr().out.splitlines()
    first, *_, last = [line for line in lines if "loss" in line]
    assert "  loss after batch 3  lr" in first
    assert "  loss 3.75  lr" in last


def test_waits_are_shown_after_each_epoch_where_that_was_asked_for(capsys):
    """The account of that epoch, below its line."""
    observer = shown.TrainingProgress(waits_each_epoch=True)
    begin(observer)
    observer.epoch_ended(made_up_epoch())

    out = capsys.readouterr().out
    assert out.index("tok/s") < out.index("host waits") < out.index("epoch_end  ")


def test_an_epoch_that_was_done_before_has_no_line(capsys):
    """A finished run that is resumed closes its last part once more, and trains nothing."""
    observer = shown.TrainingProgress(waits_each_epoch=True)
    observer.validating()
    observer.epoch_ended(made_up_epoch())

    assert capsys.readouterr().out == ""


def test_lines_of_a_file_become_rarer(capsys, clock):
    """One every ten seconds for ten minutes, and one a minute after an hour."""
    observer = shown.TrainingProgress()
    begin(observer)
    counts = []
    for _ in range(8):
        for batch in range(600):
            clock[0] += 1.0
            queue(observer, batch=batch + 1)
        counts.append(capsys.readouterr().out.count("\n"))

    assert counts[0] == 60
    assert counts[-1] == 10


def test_the_speed_is_that_of_the_newest_read(capsys, clock):
    """Time that has passed since does not count: its tokens are not known yet."""
    observer = shown.TrainingProgress()
    begin(observer)
    for batch, seconds in ((1, 2.0), (2, 50.0)):
        clock[0] = seconds
        queue(observer, batch=batch, weight=4000.0)

    assert "  2.0k tok/s" in capsys.readouterr().out


def test_a_bar_is_drawn_a_few_times_a_second_at_most(open_terminal, clock):
    """Of the batches in between nothing is drawn; a new epoch is shown at once."""
    terminal = open_terminal()
    with shown.TrainingProgress() as observer:
        begin(observer)
        for batch in range(1, 100):
            clock[0] += 0.01
            queue(observer, batch=batch)

    assert terminal.drawn()[0] == "epoch 1/2"
    assert len([line for line in terminal.drawn() if "loss" in line]) == 5


def test_an_error_leaves_no_bar_behind(open_terminal):
    """A line that is printed meanwhile stands above the bar, and what comes at the end on a line of its own."""
    terminal = open_terminal()
    with pytest.raises(ValueError, match="broken"), shown.TrainingProgress() as observer:
        begin(observer)
        observer.noted("a line above the bar")
        before = terminal.screen
        raise ValueError("broken")

    assert before.lines() == ["a line above the bar", "epoch 1/2"]
    assert terminal.screen.lines() == ["a line above the bar"]
    assert terminal.screen.column == 0


def test_a_warning_of_a_library_stands_above_the_bar(open_terminal, monkeypatch):
    """In a line of its own; and what shows warnings is given back."""
    terminal = open_terminal()

    def show(message, *_):
        terminal.write(f"{message}\n")

    with monkeypatch.context() as patch:
        patch.setattr(warnings, "showwarning", show)
        with shown.TrainingProgress() as observer:
            begin(observer)
            warnings.showwarning("torch may change", UserWarning, "x.py", 3)
            lines = terminal.screen.lines()
        is_given_back = warnings.showwarning is show

    assert lines == ["torch may change", "epoch 1/2"]
    assert is_given_back


@pytest.mark.parametrize("name", ["xterm", "dumb"])
def test_nothing_on_a_terminal_is_wider_than_it(open_terminal, always_due, monkeypatch, name):
    """Facts go on below their text; a terminal that cannot draw gets lines, which are broken at spaces."""
    terminal = open_terminal()
    monkeypatch.setenv("TERM", name)
    with shown.TrainingProgress() as observer:
        observer.started({"plan": "short", "data": "many words " * 20})
        observer.noted("b " * 60)
        begin(observer)
        observer.validated({"val_loss": 1.25, "val_bleu": 12.3})
        queue(observer, batch=1)
        observer.epoch_ended(made_up_epoch(epoch=1, validation={"val_bleu": 12.3}))

    lines = terminal.drawn()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("      words many")
    assert any("mean" in line for line in lines)
    assert ("\r" in terminal.getvalue()) == (name == "xterm")


def test_an_output_that_goes_elsewhere_gets_lines(open_terminal, always_due, monkeypatch):
    """Beside a log, no bar is drawn on the terminal of standard error."""
    terminal, log = open_terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", log)
    with shown.TrainingProgress() as observer:
        begin(observer)
        queue(observer, batch=1)

    assert "loss 3.50  mean 3.25" in log.getvalue()
    assert terminal.getvalue() == ""


def test_a_terminal_that_has_gone_ends_no_run(open_terminal, always_due, monkeypatch):
    """What is drawn then is thrown away."""
    open_terminal()

    class Gone(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    with shown.TrainingProgress() as observer:
        begin(observer)
        queue(observer, batch=1)


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
    terminal = open_terminal()
    without = counted_waits(plan, None)
    with shown.TrainingProgress() as observer:
        counted = counted_waits(plan, observer)

    assert without == counted
    assert (without[0].total() > 0) == (plan == "deferred-loss")
    assert any("loss 1.00  mean 1.00  lr" in line for line in terminal.drawn())


# ------------------------------------------------------------------------------------- other work


def test_a_bar_of_steps_is_one_line_that_is_written_over(open_terminal, monkeypatch):
    """It fits the terminal, and clearing it leaves nothing behind."""
    terminal = open_terminal()
    monkeypatch.setenv("COLUMNS", "60")
    steps = shown.Steps("steps")

    steps.show("half", 2, of=4)
    half = terminal.screen.line()
    steps.show("名字很长的工作负载" * 4, 4, of=4)
    long = terminal.screen
    steps.clear()

    assert re.match(r"half:  50%\|=+-+\| 2/4 \[", half)
    assert len(half) <= 57
    assert (long.row, long.wrapped) == (0, set())
    assert terminal.screen.lines() == []


def test_steps_are_drawn_a_few_times_a_second_at_most(open_terminal, monkeypatch):
    """A new title is shown at once; steps in between are not."""
    monkeypatch.setattr(shown, "BAR_SECONDS", 3600.0)
    terminal = open_terminal()
    steps = shown.Steps("steps")
    for step in range(100):
        steps.show("first", step, of=100)
    steps.show("second", 0, of=100)
    steps.clear()

    assert [line.split(":")[0] for line in terminal.drawn()] == ["first", "second"]


def test_a_bar_leaves_threads_and_processes_as_they_are(open_terminal):
    """No thread draws, and a workload may still choose how its processes start."""
    open_terminal()
    before = threading.enumerate()
    former = multiprocessing.get_start_method(allow_none=True)
    steps = shown.Steps("steps")
    steps.show("first", 1, of=2)
    during = threading.enumerate()
    steps.clear()

    assert during == before
    assert multiprocessing.get_start_method(allow_none=True) == former


@pytest.mark.parametrize("at_once", [True, False])
def test_lines_of_steps_come_seldom(capsys, clock, at_once):
    """A title is written when it is new, unless short work is to stay silent, and then every ten seconds."""
    steps = shown.Steps("steps", at_once=at_once)
    for step in range(25):
        steps.show("first", step, of=25)
        clock[0] += 1.0
    steps.show("second", 0, of=5)
    steps.clear()

    begun, next_title = (
        (["0:00:00  first  0/25"], ["0:00:25  second  0/5"]) if at_once else ([], [])
    )
    written = capsys.readouterr().err.splitlines()
    assert written == [*begun, "0:00:10  first  10/25", "0:00:20  first  20/25", *next_title]


def test_a_terminal_without_tqdm_gets_lines(open_terminal, monkeypatch):
    """The core runs with torch alone."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = open_terminal()
    steps = shown.Steps("steps")
    steps.show("first", 1, of=2)

    assert terminal.getvalue() == "0:00:00  first  1/2\n"
