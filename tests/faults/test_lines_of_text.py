"""`translate` and `evaluate`: a line for a line, whatever comes in and whatever the model writes."""

from __future__ import annotations

import json
import math
import os

import pytest

from faults.runs import SIZES, train_options, write_data
from gapless.checkpoint.store import read_checkpoint, write_checkpoint


pytestmark = pytest.mark.xdist_group("processes: lines of text")

CPU = ["--device", "cpu"]

# A word of the target language that would clear the terminal, ring and set its title.
ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\x7fA"


@pytest.fixture(scope="session")
def rude(launcher_of_session, tmp_path_factory):
    """A run whose model has learned to write escape sequences alone."""
    folder = tmp_path_factory.mktemp("rude")
    data = folder / "data"
    data.mkdir()
    for split, count in (("train", 64), ("val", 4), ("test", 4)):
        (data / f"{split}.en").write_text("a b\n" * count, encoding="utf-8")
        (data / f"{split}.zh").write_text(f"{ESCAPE} {ESCAPE}\n" * count, encoding="utf-8")
    options = ["train", "--data", data, "--run-dir", folder / "run", *SIZES]
    options += ["--batch-size", 8, "--epochs", 6, "--lr", "0.03", "--dropout", 0]
    launcher_of_session.run(*options, folder=folder).check_done()
    return folder / "run"


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


@pytest.mark.slow
def test_escape_sequences_are_neutralised(rude, translate):
    """What the model writes reaches a terminal as text, one line for each that went in."""
    ended, out = translate(rude, b"a b\n\na b\n")

    ended.check_done()
    text = out.decode()
    lines = text.split("\n")
    assert unwanted(text) == []
    assert len(lines) == 4
    assert lines[3] == ""
    assert lines[1] == ""
    assert "owned" in lines[0], "the model writes its words, and they are not lost"


@pytest.mark.slow
def test_escape_sequences_in_a_list_of_the_best(rude, translate):
    """Lists of the best are lines of three parts, however the model writes."""
    ended, out = translate(rude, b"a b\na b\n", "--n-best", "3", "--beam", "3")

    ended.check_done()
    assert unwanted(out.decode()) == []
    lines = out.decode().split("\n")[:-1]
    assert len(lines) == 6
    assert [len(line.split(" ||| ")) for line in lines] == [3] * 6


@pytest.mark.slow
def test_scores(rude, command):
    """A score prints nothing as the model wrote it; as JSON, every number is one."""
    shown, written = command("evaluate", rude, *CPU), command("evaluate", rude, *CPU, "--json")

    shown.check_done()
    assert unwanted(shown.out) == []
    json.loads(written.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


INPUTS = {
    "empty lines": (b"\n\nred\n\n", 4),
    "no newline at the end": (b"red\ndog", 2),
    "nothing": (b"", 0),
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
    inputs = [(text, count) for text, count in INPUTS.values() if text.endswith(b"\n")]

    ended, out = translate(finished, b"".join(text for text, _ in inputs))

    ended.check_done()
    assert out.count(b"\n") == sum(count for _, count in inputs)
    assert unwanted(out.decode()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no newline at the end", "nothing"])
def test_the_end_of_lines(finished, translate, name):
    """A last line needs no end of its own, and no line gives none."""
    text, count = INPUTS[name]

    ended, out = translate(finished, text)

    ended.check_done()
    assert out.count(b"\n") == count


def test_text_that_is_no_utf8(finished, translate):
    """A byte that is no text is named with its line, or its line is answered all the same."""
    ended, out = translate(finished, b"red\n\xff\xfe dog\ncat\n")

    ended.check_no_traceback()
    if ended.code:
        ended.check_refused("line 2")
    else:
        assert out.count(b"\n") == 3


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


@pytest.mark.slow
def test_words_with_separators(run, tmp_path, translate):
    """Words that look like the parts of a list of the best stay within their part."""
    words = ["|||", "a|||b", "red", "dog"]
    data = write_data(tmp_path / "data", words=words, train=64)
    run(*train_options(data, tmp_path / "run", epochs=1)).check_done()

    ended, out = translate(tmp_path / "run", b"red\n", "--n-best", "2", "--beam", "2")

    ended.check_done()
    assert out.count(b"\n") == 2
