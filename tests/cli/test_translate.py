"""`gapless translate` answers each line with one line, as it comes, whatever the model does."""

from __future__ import annotations

import io
import itertools
import os
import re
import sys

import pytest

from gapless.cli import progress, translate_command
from gapless.cli.output import write_utf8
from gapless.errors import DataError
from gapless.nmt.data.text_files import arriving_lines
from gapless.nmt.data.vocab import SubwordVocab
from gapless.nmt.run import translator
from gapless.nmt.run.translator import one_line


def test_what_a_model_writes_stays_on_its_line(gapless, tiny_run, monkeypatch):
    """Line ends, control characters and escape sequences reach no terminal and no file."""
    written = "a\nb\r\x1b[31mc\x07\x9b2J\u2028d\x85e\tf\0"
    monkeypatch.setattr(SubwordVocab, "decode", lambda self, ids: written)
    translated = gapless("translate", tiny_run, "cat", "", "dog 2.")
    evaluated = gapless("evaluate", tiny_run)

    line = "a b \ufffd[31mc\ufffd\ufffd2J d e f\ufffd"
    assert translated.out == f"{line}\n\n{line}\n"
    assert evaluated.code == 0
    assert (tiny_run / "hypotheses.test.txt").read_text() == f"{line}\n" * 12


def test_a_line_has_the_words_of_its_text():
    """Sacrebleu divides words at all white space: a score is that of the files that are written."""
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]

    assert [one_line(f"a{space}b").split() for space in spaces] == [["a", "b"]] * len(spaces)


def test_translations_in_another_encoding(gapless, process, tiny_run):
    """A pipe gets them in UTF-8, as sentences are read, whatever messages are written in."""
    expected = gapless("translate", tiny_run, "cat", "dog 2.").out
    messages = "import sys; sys.stdout = open(1, 'w', encoding='gbk', closefd=False)"
    done = process("translate", tiny_run, "cat", "dog 2.", before=messages)

    assert done.returncode == 0, done.stderr
    assert not expected.isascii()
    assert done.stdout == expected


def test_translations_on_a_terminal_of_another_encoding(terminal):
    """It gets escapes for what it lacks: UTF-8 would be other letters there."""
    slave, read = terminal
    with open(slave, "w", encoding="ascii", errors="backslashreplace", closefd=False) as screen:
        write_utf8(screen)
        screen.write("\u7ea2")

    assert read() == r"\u7ea2"


def test_a_search_without_result(gapless, tiny_run, monkeypatch):
    """A line for which the model finds nothing, as where its numbers overflow, gives an empty line."""
    load = translator.load_model

    def load_huge(*arguments, **options):
        config, vocabs, model = load(*arguments, **options)
        model.generator.weight.data.fill_(3e38)
        return config, vocabs, model

    monkeypatch.setattr(translator, "load_model", load_huge)
    outcome = gapless("translate", tiny_run, "cat", "dog 2.")

    assert outcome.code == 0, outcome.err
    assert outcome.out == "\n\n"


class Keyboard(io.TextIOWrapper):
    """Standard input of somebody who sits at a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [Keyboard, io.TextIOWrapper])
def test_whoever_is_to_type_is_told(gapless, tiny_run, monkeypatch, kind):
    """A terminal that waits in silence looks as if the command hung; a pipe needs no word."""
    monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(b"cat\ndog 2.\n")))

    outcome = gapless("translate", tiny_run)

    told = "reading sentences from the keyboard, one a line; Ctrl-D ends\n"
    assert outcome.err.startswith(told) == (kind is Keyboard)
    assert outcome.out.count("\n") == 2


@pytest.fixture
def file_of_lines(tmp_path):
    """Twelve sentences of unlike lengths, one of them empty."""
    lines = [
        " ".join(["cat", "dog", "big"][: n % 4]) + ("" if n == 4 else f" {n}.") for n in range(12)
    ]
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_file_is_translated_some_lines_at_a_time(gapless, tiny_run, file_of_lines, monkeypatch):
    """All lines have their translations in order; what ends the command costs only those under way."""
    whole = gapless("translate", tiny_run, "--file", file_of_lines, "--batch", "1")
    monkeypatch.setattr(translate_command, "FILE_LINES", 5)
    parts = gapless("translate", tiny_run, "--file", file_of_lines, "--batch", "1")
    search, num_calls = translator.Translator.search, itertools.count(1)

    def search_twice(self, *arguments, **options):
        if next(num_calls) > 2:
            raise KeyboardInterrupt
        return search(self, *arguments, **options)

    monkeypatch.setattr(translator.Translator, "search", search_twice)
    ended = gapless("translate", tiny_run, "--file", file_of_lines, "--batch", "1")

    assert parts == whole
    assert whole.out.count("\n") == 12
    assert ended.code == 130
    assert ended.out.splitlines() == whole.out.splitlines()[:10]


def test_samples_of_a_line_are_the_same_in_any_part_of_a_file(
    gapless, tiny_run, file_of_lines, monkeypatch
):
    """Its number in the file decides with the seed, not its place among lines read together."""
    sample = ("translate", tiny_run, "--file", file_of_lines, "--sample")
    whole = gapless(*sample)
    monkeypatch.setattr(translate_command, "FILE_LINES", 5)

    assert gapless(*sample) == whole
    assert len(set(whole.out.splitlines())) == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seed", "3"), "--seed is of samples; give --sample too"),
        (("--sample", "--beam", "4"), "--beam is of a search; leave it out, or --sample"),
        (("--sample", "--no-early-stopping"), "--early-stopping is of a search"),
    ],
)
def test_options_of_samples_and_of_a_search_do_not_go_together(gapless, tiny_run, options, said):
    """One that would have no effect is named."""
    done = gapless("translate", tiny_run, "a", *options)

    assert done.code == 2
    assert done.out == ""
    assert said in done.err


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_terminal_shows_how_many_sentences_are_translated(
    process, terminal, tiny_run, file_of_lines, command
):
    """In one line, which is gone at the end; a pipe hears nothing of what is quick."""
    options = ["--file", file_of_lines] if command == "translate" else ["--out", "scored"]
    written, read = terminal

    shown = process(command, tiny_run, *options, "--batch", "3", "--device", "cpu", stderr=written)
    silent = process(command, tiny_run, *options, "--batch", "3", "--device", "cpu")

    screen = read()
    assert shown.returncode == silent.returncode == 0
    assert re.search(r"translating: .* 3/12 \[", screen)
    assert re.search(r"\d+/12 \[[^\r]*\r +\r(?!translating)", screen)
    assert shown.stdout == silent.stdout
    assert "sentences" not in silent.stderr


def test_lines_of_progress_go_on_over_the_parts_of_a_file(
    gapless, tiny_run, file_of_lines, monkeypatch
):
    """One clock counts for all parts, each of which is shorter than the time between two lines."""
    seconds = itertools.count(step=3)
    monkeypatch.setattr(progress, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(translate_command, "FILE_LINES", 3)

    done = gapless("translate", tiny_run, "--file", file_of_lines, "--batch", "1")

    # The empty line, which is in no batch, counts from the end of its part.
    expected = "0:00:12  translating  4/12\n0:00:24  translating  9/12\n"
    assert done.progress == expected


class Screen(io.StringIO):
    """A terminal that shows both outputs."""

    def isatty(self):
        return True


def test_the_bar_is_taken_away_before_a_part_is_printed(
    gapless, tiny_run, file_of_lines, monkeypatch
):
    """Translations begin on a line of their own, and the next part draws the bar again."""
    monkeypatch.setattr(translate_command, "FILE_LINES", 5)
    # Drawn only where it was taken away.
    monkeypatch.setattr(progress, "BAR_SECONDS", 3600.0)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)

    done = gapless("translate", tiny_run, "--file", file_of_lines, "--batch", "5", "--n-best", "2")

    drawn = re.findall(r"(\d+)/12 \[[^\r]*\r *\r", screen.getvalue())
    assert done.code == 0
    assert drawn == ["4", "10", "12"]


class Arriving:
    """A stream whose bytes come in portions."""

    def __init__(self, *portions):
        self._portions = list(portions)

    def read1(self, size):
        return self._portions.pop(0) if self._portions else b""


@pytest.mark.parametrize(
    ("portions", "expected"),
    [
        ([], []),
        ([b"a\nb\n"], [["a", "b"]]),
        ([b"a\n\nb", b"c\r\n", b"d"], [["a", ""], ["bc"], ["d"]]),
        ([b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"], [["a"], ["b"]]),
        (["猫".encode()[:1], "猫".encode()[1:], b"\n"], [["猫"]]),
        ([b"a", b"b", b"c"], [["abc"]]),
    ],
)
def test_lines_of_portions(portions, expected):
    """A line is whole when its end has come, or that of the stream."""
    assert list(arriving_lines(Arriving(*portions), name="it")) == expected


def test_a_portion_that_is_not_utf8():
    """The lines before it come first; byte and line count from the stream's start."""
    lines = arriving_lines(io.BytesIO(b"\xef\xbb\xbfcat\ndog\nd\xfe\n"), name="it")

    assert next(lines) == ["cat", "dog"]
    with pytest.raises(DataError, match="it is not UTF-8: byte 0xfe at offset 12, line 3"):
        next(lines)


def test_text_that_is_piped_needs_no_file(gapless, tiny_run, tmp_path):
    """A pipe is no file, and what to do instead is told."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    gapless("translate", tiny_run, "--file", pipe).check_refused(
        f"{pipe} is a pipe or a device, which cannot be read again, expected a text file"
    )
