"""The command line in this process, and a tiny trained run."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from gapless.cli.main import run_command
from gapless.device.numerics import numerics_restored


SRC = str(Path(__file__).parents[2] / "src")

# A model that trains in a moment, and one of subwords.
SMALL = [
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--warmup", "2", "--beam", "2", "--max-length", "20"),
    *("--device", "cpu", "--workers", "0", "--batch-size", "16"),
]
TINY = [*SMALL, "--vocab-size", "300"]
ONE_EPOCH = [*TINY, "--epochs", "1"]


# Lines of progress, which come where there is no terminal to draw a bar on.
_PROGRESS = re.compile(r"^\d+:\d\d:\d\d  .*  \d+/\d+\n", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    new_files: list[str]
    progress: str = ""

    def check_refused(self, *parts):
        """Check that there is one line of error that holds all parts, and nothing else."""
        assert self.code == 2
        assert self.err.startswith("gapless: error: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err + self.out
        assert [part for part in map(str, parts) if part not in self.err] == []
        assert self.new_files == []


@pytest.fixture
def gapless(capsys, monkeypatch, tmp_path, numerics):
    """Run a command in a working folder of its own; return its exit code and what it left."""
    monkeypatch.chdir(tmp_path)

    def files():
        # The cache of vocabularies is no part of a run.
        return {path for path in tmp_path.rglob("*") if tmp_path / "cache" not in path.parents}

    def call(*arguments):
        before = files()
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        new = sorted(str(path.relative_to(tmp_path)) for path in files() - before)
        return Outcome(
            code=code,
            out=out,
            err=_PROGRESS.sub("", err),
            new_files=[n for n in new if n != "cache"],
            progress="".join(_PROGRESS.findall(err)),
        )

    return call


@contextlib.contextmanager
def pipe():
    """A file to write to; at the end a list has what was written."""
    receiving, sending = os.pipe()
    written = []

    def receive():
        with os.fdopen(receiving, encoding="utf-8", errors="surrogateescape") as file:
            written.append(file.read())

    reader = threading.Thread(target=receive)
    reader.start()
    try:
        with os.fdopen(sending, "wb") as file:
            yield file, written
    finally:
        reader.join()


@pytest.fixture
def process(launcher, tmp_path):
    """Run the command in a process of its own and in the test's folder; `real=True` starts Python anew.

    Its outputs are pipes; `stderr` may be a terminal, and `stdin` bytes.
    """

    def call(*arguments, stdin=b"", stderr=None, **options):
        given = tmp_path.with_name(f"stdin-of-{tmp_path.name}")
        given.write_bytes(stdin)
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(given.open("rb"))
            out, printed = opened.enter_context(pipe())
            err, said = opened.enter_context(pipe())
            if stderr is not None:
                err = opened.enter_context(os.fdopen(stderr, "wb", closefd=False))
            done = launcher.run(
                *arguments,
                folder=tmp_path,
                stdin=source,
                stdout=out,
                stderr=err,
                XDG_CACHE_HOME=tmp_path.with_name(f"cache-of-{tmp_path.name}"),
                **options,
            )
        return subprocess.CompletedProcess(arguments, done.code, *printed, *said)

    return call


@pytest.fixture
def terminal():
    """A terminal: a file for a process to write to, and a function that returns what it wrote."""
    master, slave = pty.openpty()
    seen = []

    def take():
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while part := os.read(master, 1 << 16):
                seen.append(part)

    # Meanwhile: a terminal that nobody reads from blocks who writes to it.
    reader = threading.Thread(target=take)
    reader.start()

    def read():
        if reader.is_alive():
            os.close(slave)
            reader.join()
            os.close(master)
        return b"".join(seen).decode()

    yield slave, read
    read()


def make_pairs(count=80, *, seed=3):
    """Return English-like and Chinese-like sentences of a few words each."""
    draw = random.Random(seed)
    words = [
        ("red", "红"),
        ("big", "大"),
        ("cat", "猫"),
        ("dog", "狗"),
        ("sees", "看"),
        ("the", "这"),
    ]
    chosen = [[draw.choice(words) for _ in range(draw.randint(2, 6))] for _ in range(count)]
    return [
        (" ".join(en for en, _ in row) + f" {n}.", "".join(zh for _, zh in row) + f"{n}。")
        for n, row in enumerate(chosen)
    ]


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """A folder of parallel text with three splits."""
    folder = tmp_path_factory.mktemp("data")
    for split, count in (("train", 80), ("val", 10), ("test", 12)):
        pairs = make_pairs(count, seed=count)
        for side, name in enumerate(("en", "zh")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{name}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_run(tiny_data, tmp_path_factory):
    """The folder of a run of two epochs on `tiny_data`."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    arguments = ["train", "--data", str(tiny_data), "--run-dir", str(run), *TINY]
    with numerics_restored():
        assert run_command([*arguments, "--epochs", "2", "--average", "2"]) == 0
    return run


def write_table(path, count=60, *, first=0):
    """Write so many pairs of two hundred as a table with a header, from this one on; return its path."""
    rows = make_pairs(200)[first : first + count]
    text = "".join(f"{source}\t{target}\n" for source, target in rows)
    path.write_text(f"en\tzh\n{text}", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def folder_of_table(tmp_path_factory):
    """A folder with 60 pairs in `d.tsv` and a run `r` of one epoch, which recorded that relative path."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder / "d.tsv")
    with numerics_restored(), contextlib.chdir(folder):
        assert run_command(["train", "--data", "d.tsv", "--run-dir", "r", *ONE_EPOCH]) == 0
    return folder


@pytest.fixture
def run_of_table(folder_of_table, tmp_path):
    """That table and its run, in the test's own folder."""
    shutil.copytree(folder_of_table, tmp_path, dirs_exist_ok=True)
