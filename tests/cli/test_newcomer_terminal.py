"""What a newcomer sees on a terminal of 80 columns: a run, an interrupt, an error, a dry run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import unicodedata
from dataclasses import dataclass

import pytest
import yaml

from cli.conftest import SRC, make_pairs


ROWS, COLUMNS = 24, 80
EPOCHS = 16

# Small, so that it ends soon; what decides how well it learns is left to the trainer.
MODEL = [
    *("--d-model", "32", "--heads", "2", "--ffn", "32", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--device", "cpu", "--workers", "0", "--beam", "1"),
]


@dataclass
class Seen:
    """What a command wrote to a terminal, and how it ended."""

    code: int
    written: str

    @property
    def drawn(self):
        """Every state of every line that was drawn, without colours and movements of the cursor."""
        return [_plain(part) for part in re.split(r"[\r\n]|\x1b\[\d*[KJAFG]", self.written)]

    @property
    def screen(self):
        """The lines that stay on the terminal."""
        lines = []
        for line in self.written.replace("\r\n", "\n").split("\n"):
            lines.append(_plain(re.split(r"\r|\x1b\[2?K", line)[-1]))
        return lines

    def check_cursor_is_back(self):
        """Check that who hid the cursor has shown it again."""
        assert (re.findall(r"\x1b\[\?25([lh])", self.written) or ["h"])[-1] == "h"


def _plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def width(line):
    """Return the columns that a line takes; a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in line)


def on_terminal(folder, *arguments, interrupt_when=None):
    """Run the command on a terminal of 80 columns, and interrupt it when a pattern was written."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONPATH": SRC, "TERM": "xterm", "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gapless", *map(str, arguments)],
        cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    parts = []

    def read():
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while part := os.read(master, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        if interrupt_when:
            _wait_until(
                lambda: (
                    re.search(interrupt_when, b"".join(parts).decode(errors="replace"))
                    or process.poll() is not None
                )
            )
            process.send_signal(signal.SIGINT)
        code = process.wait(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reader.join()
        os.close(master)
    return Seen(code, b"".join(parts).decode())


def _wait_until(condition):
    limit = time.perf_counter() + 300.0
    while not condition():
        assert time.perf_counter() < limit
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with pairs in a TSV."""
    folder = tmp_path_factory.mktemp("newcomer")
    text = "en\tzh\n" + "".join(f"{source}\t{target}\n" for source, target in make_pairs(300))
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    return folder


TRAIN = ["train", "--data", "pairs.tsv", "--src", "en", "--tgt", "zh", *MODEL]


@pytest.fixture(scope="module")
def session(folder):
    """A run from its start to its end."""
    return on_terminal(folder, *TRAIN, "--epochs", EPOCHS, "--batch-size", "4", "--run-dir", "run")


# ----------------------------------------------------------------------------------------- a run


@pytest.mark.slow
def test_nothing_is_wider_than_the_terminal(session):
    """A line that wraps breaks the bar, which is written over in its one line."""
    assert session.code == 0
    assert [line for line in session.drawn if width(line) > COLUMNS] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [r"\d:\d\d", r"\blr\b|learning rate|\brate\b", r"tok", r"BLEU|val|score"],
    ids=["time left", "learning rate", "tokens a second", "newest validation score"],
)  # fmt: skip
def test_the_bar_shows(session, part):
    """In one line, with a bar, in one epoch or another: each is over in a moment."""
    bars = [line for line in session.drawn if re.search(r"[━█▏▎▍▌▋▊▉#=]{2}.*loss", line)]

    assert [line for line in bars if re.search(part, line)]


@pytest.mark.slow
def test_waits_are_told_once(session):
    """At the end; an epoch takes two lines at most."""
    kept = [line for line in session.screen if line.strip()]

    assert sum("epoch_end" in line for line in kept) == 1
    assert len(kept) <= 2 * EPOCHS + 40


@pytest.mark.slow
def test_every_epoch_has_its_waits_and_utilisation_in_the_metrics(session, folder):
    """For whoever asks later which epoch was slow."""
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [
        text for text in lines if "waits" in text and re.search(r"busy|utili[sz]ation", text)
    ]

    assert len(epochs) == EPOCHS
    assert all(json.loads(text) for text in epochs)


@pytest.mark.slow
def test_the_cursor_is_there_after_a_run(session):
    """Whether it was hidden or not."""
    session.check_cursor_is_back()


@pytest.mark.slow
def test_what_was_chosen_is_said_with_its_reason(session, folder):
    """Warm-up, batch and vocabulary in a line each, and their numbers are frozen in config.yaml."""
    kept = "\n".join(session.screen)
    frozen = yaml.safe_load((folder / "run" / "config.yaml").read_text(encoding="utf-8"))

    assert re.search(r"warm-?up +[\d,]+\b.*\d ?% of (?:about )?[\d,]+", kept)
    assert re.search(r"vocabulary.*\d", kept)
    assert re.search(r"batch.*\d", kept)
    chosen = {name: frozen[name] for name in ("warmup", "vocab_size", "epochs", "lr", "schedule")}
    assert None not in chosen.values()


@pytest.mark.slow
def test_which_weights_were_kept_is_said(session):
    """Of the averaged, the last and the best ones."""
    assert re.search(r"averaged?|last|best", "\n".join(session.screen[-30:]))
    assert re.search(r"kept|keeps|chosen|final model", "\n".join(session.screen[-30:]))


# ---------------------------------------------------------------------------- interrupt and error


@pytest.fixture
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and so do they theirs."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(folder, ctrl_c_interrupts):
    """In the last lines, on their own; the cursor is back, and there is no traceback."""
    seen = on_terminal(
        folder, *TRAIN, "--epochs", "10000", "--run-dir", "stopped", interrupt_when=r"\d+/10000\b"
    )

    last = [line for line in seen.screen if line.strip()][-3:]
    assert seen.code == 130
    assert "--resume stopped" in " ".join(last)
    assert "===" not in last[-1]
    assert "Traceback" not in seen.written
    seen.check_cursor_is_back()


@pytest.mark.slow
def test_an_error_is_one_line(folder):
    """It names what was typed and what to type; no bar, no traceback, no hidden cursor."""
    seen = on_terminal(folder, *TRAIN, "--epoch", "3")

    (line,) = [line for line in seen.screen if line.strip()]
    assert seen.code == 2
    assert "--epoch" in line
    assert "see gapless train --help" in line
    seen.check_cursor_is_back()


@pytest.mark.slow
def test_a_run_that_cannot_learn_is_told_so(folder):
    """Fewer updates than the warm-up has: both numbers are named while it runs."""
    seen = on_terminal(
        folder, *TRAIN, "--warmup", "4000", "--max-steps", "40", "--run-dir", "cannot"
    )

    told = " ".join(seen.screen)
    assert seen.code == 0
    assert re.search(r"\b40 updates\b.*\b4,?000\b.*warm-?up", told)


# -------------------------------------------------------------------------------------- a dry run


DRY_RUN = ["train", "--data", "pairs.tsv", "--src", "en", "--tgt", "zh", "--dry-run"]


@pytest.fixture
def dry_run(gapless, tmp_path):
    """Print what a run would do with some pairs, and other flags."""
    text = "en\tzh\n" + "".join(f"{source}\t{target}\n" for source, target in make_pairs(300))
    (tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    return lambda *flags: gapless(*DRY_RUN, "--device", "cpu", *flags)


@pytest.mark.slow
def test_a_dry_run_prints_and_stops(dry_run):
    """What was chosen, how long it takes, how much memory it needs; no folder is made."""
    outcome = dry_run()

    assert (outcome.code, outcome.err, outcome.new_files) == (0, "", [])
    for part in (
        r"warm-?up.*\d",
        r"epochs?.*\d",
        r"vocab.*\d",
        r"batch.*\d",
        r"layers?.*\d|\d.*layers?",
        r"(time|takes|about).*\d+ ?(s|min|h|seconds|minutes|hours)\b|\d+:\d\d",
        r"\d ?(MiB|GiB|MB|GB)",
    ):
        assert re.search(part, outcome.out), part


@pytest.mark.slow
def test_a_dry_run_fits_the_terminal(folder):
    """A line that is longer goes on in the next one, as those of a run do."""
    seen = on_terminal(folder, *DRY_RUN, "--device", "cpu")

    assert seen.code == 0
    assert [line for line in seen.drawn if width(line) > COLUMNS] == []


@pytest.mark.slow
def test_a_flag_wins_over_what_would_be_chosen(dry_run):
    """No other value stands in the dry run, with a reason that does not hold."""
    outcome = dry_run("--warmup", "33", "--lr", "0.00123")

    assert outcome.code == 0
    assert re.findall(r"^(?:warm-?up|lr) (?!33|0\.00123).*", outcome.out, re.MULTILINE) == []
    assert "warmup" in dry_run().out


# ------------------------------------------------------------------------------- after the training


@pytest.mark.slow
def test_an_evaluation_leaves_what_it_compared(session, folder):
    """Sources, references and hypotheses, line by line."""
    seen = on_terminal(folder, "evaluate", "run", "--device", "cpu")

    texts = []
    for name in ("sources", "references", "hypotheses"):
        (path,) = (folder / "run").glob(f"*{name}*")
        assert str(path.relative_to(folder)) in seen.written
        texts.append(path.read_text(encoding="utf-8").splitlines())
    sources, references, hypotheses = texts
    assert (session.code, seen.code) == (0, 0)
    assert set(zip(sources, references, strict=True)) <= set(make_pairs(300))
    assert len(hypotheses) == len(sources) > 0


@pytest.mark.slow
def test_a_run_translates_in_python_as_on_the_command_line(session, folder, tmp_path):
    """`gapless.nmt.Translator(run).translate(sentences)` gives a line for each sentence."""
    sentences = ["the red dog 3.", "", "big cat sees the dog 7."]
    script = tmp_path / "script.py"
    script.write_text(
        "from gapless.nmt import Translator\n"
        f"for line in Translator({str(folder / 'run')!r}).translate({sentences!r}):\n"
        "    print(line)\n"
    )
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in sentences))
    call = {"env": {**os.environ, "PYTHONPATH": SRC}, "capture_output": True, "text": True}
    in_python = subprocess.run([sys.executable, script], check=True, **call)
    command = [sys.executable, "-m", "gapless", "translate", folder / "run"]
    on_command_line = subprocess.run([*command, "--file", tmp_path / "in.txt"], check=True, **call)

    assert session.code == 0
    assert in_python.stdout == on_command_line.stdout
    assert in_python.stdout.count("\n") == 3


@pytest.mark.slow
def test_a_run_ends_by_its_time_with_a_model(folder):
    """`--max-time` with epochs without end: the final model is written and translates."""
    seen = on_terminal(
        folder, *TRAIN, "--max-time", "5s", "--epochs", "100000", "--run-dir", "timed"
    )

    assert seen.code == 0
    assert on_terminal(folder, "translate", "timed", "the red dog 3.").code == 0


@pytest.mark.slow
def test_a_run_begins_from_another_one(session, folder):
    """`--init-from` takes its weights and its vocabulary, for new pairs."""
    text = "en\tzh\n" + "".join(
        f"{source}\t{target}\n" for source, target in make_pairs(60, seed=8)
    )
    (folder / "new.tsv").write_text(text, encoding="utf-8")

    command = ["train", "--data", "new.tsv", "--init-from", "run", "--run-dir", "tuned"]
    seen = on_terminal(folder, *command, "--epochs", "1", "--device", "cpu", "--workers", "0")

    assert (session.code, seen.code) == (0, 0)
    old, new = (sorted((folder / run).glob("*.spm")) for run in ("run", "tuned"))
    assert old
    assert [path.read_bytes() for path in old] == [path.read_bytes() for path in new]


@pytest.mark.parametrize(
    "command",
    ["", "plans", "train --help", "translate --help", "evaluate --help", "doctor --help"],
)
def test_what_a_command_offers_fits_the_terminal(folder, command):
    """Also its first lines, and the table of plans."""
    seen = on_terminal(folder, *command.split())

    assert seen.code == 0
    assert [line for line in seen.screen if width(line) > COLUMNS] == []
