"""`translate` gives a line for a line, whatever comes in; weights that are no numbers give none."""

from __future__ import annotations

import math
import os

import pytest

from gapless.checkpoint.store import read_checkpoint, write_checkpoint


pytestmark = pytest.mark.xdist_group("processes: lines of text")

CPU = ["--device", "cpu"]


@pytest.fixture
def translate(launcher, tmp_path):
    """Translate bytes from standard input; return how it ended, and the bytes that came out."""

    def call(folder, text, *more):
        (tmp_path / "input").write_bytes(text)
        with (tmp_path / "input").open("rb") as stdin, (tmp_path / "output").open("wb") as stdout:
            ended = launcher.run(
                *("translate", folder, *CPU, *more), folder=tmp_path, stdin=stdin, stdout=stdout
            )
        return ended, (tmp_path / "output").read_bytes()

    return call


def unwanted(text):
    """Return the control characters in lines of output."""
    return sorted({c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0} - {"\n", "\t"})


INPUTS = {
    "empty lines": (b"\n\nred\n\n", 4),
    "spaces": (b"   \n\t\n", 2),
    "carriage returns": (b"red\r\ndog\r\n", 2),
    "a carriage return within": (b"red\rdog\nblue\n", 2),
    "other line ends": ("red\u2028dog\u2029cat\x85big\x0bold\x0cnew\x1csun\n".encode(), 1),
    "escape sequences": (b"\x1b[2J red \x07\n", 1),
    "nul bytes": (b"red\0dog\n", 1),
    "unknown words": ("你好 🦊 ﷽\n".encode(), 1),
    "a byte order mark": (b"\xef\xbb\xbfred\n", 1),
    "a long line": (b"red " * 5000 + b"\n" + b"dog\n", 2),
    "a long word": (b"x" * 100_000 + b"\n", 1),
}


def test_lines_of_all_kinds(finished, translate):
    """Lines of every kind, one after the other, give as many lines, without control characters."""
    ended, out = translate(finished, b"".join(text for text, _ in INPUTS.values()))

    ended.check_done()
    assert out.count(b"\n") == sum(count for _, count in INPUTS.values())
    assert unwanted(out.decode()) == []


def test_lines_are_answered_as_they_come(finished, start):
    """A program can ask a line, read its answer, and ask the next."""
    to_read, to_write = os.pipe()
    with os.fdopen(to_read, "rb") as stdin:
        process = start("translate", finished, *CPU, stdin=stdin)
    with os.fdopen(to_write, "wb", buffering=0) as asking:
        for number, word in enumerate((b"red\n", b"\n", b"blue dog\n"), start=1):
            asking.write(word)
            process.until(
                lambda number=number: process.out.count("\n") == number, what=f"answer {number}"
            )

    process.end().check_done()


@pytest.mark.slow
def test_an_answer_that_nobody_reads(finished, start, tmp_path):
    """`gapless translate RUN --file many | head -1` ends quietly."""
    (tmp_path / "many").write_text("red dog\n" * 3000)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        process = start("translate", finished, *CPU, "--file", tmp_path / "many", stdout=pipe)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.readline().endswith(b"\n")

    ended = process.end()

    assert ended.err == ""
    assert ended.code in (0, 1, 141)


@pytest.mark.parametrize("what", [["translate", "red"], ["evaluate"]], ids=" ".join)
def test_weights_that_are_no_numbers(finished_copy, command, what):
    """Weights that are not finite are refused before a word is translated, whole as they are."""
    final = finished_copy / "checkpoints" / "final"
    saved = read_checkpoint(final)
    name = next(name for name, tensor in saved.tensors.items() if tensor.is_floating_point())
    saved.tensors[name].view(-1)[0] = math.nan
    write_checkpoint(
        final, step=saved.step, tensors=saved.tensors, meta=saved.meta, files=saved.files
    )
    assert command("checkpoint", "verify", finished_copy).code == 0

    ended = command(what[0], finished_copy, *CPU, *what[1:])

    ended.check_refused("finite", finished_copy)
    assert ended.out == ""


@pytest.mark.slow
def test_an_interrupt_between_two_lines(finished, start):
    """Ctrl-C ends a translation with its code and no traceback."""
    to_read, to_write = os.pipe()
    with os.fdopen(to_read, "rb") as stdin:
        process = start("translate", finished, *CPU, stdin=stdin)
    with os.fdopen(to_write, "wb", buffering=0) as asking:
        asking.write(b"red\n")
        process.until(lambda: process.out.count("\n") == 1, what="the first answer")
        process.send(2)

        ended = process.end()

    assert ended.code == 130
    ended.check_no_traceback()
