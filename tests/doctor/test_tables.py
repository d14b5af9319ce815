"""The tables of expectations are well formed; whoever judges by them reads them with `tables.py`."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from doctor.tables import LOOP, Snippet, files_of, read_command_line, static_snippets


SNIPPETS = static_snippets()
COMMANDS = read_command_line()
PLAIN = [run for run in COMMANDS["run"] if "plain" in run]


def test_there_are_enough_snippets_of_each_verdict():
    """Many lines of each verdict, many snippets with none, and comments that allow."""
    verdicts = [verdict for one in SNIPPETS for verdict in one.expected.values()]

    assert len(SNIPPETS) >= 60
    assert verdicts.count("surely") >= 40
    assert verdicts.count("maybe") >= 6
    assert sum(not one.expected for one in SNIPPETS) >= 40
    assert sum("gapless: allow" in one.source for one in SNIPPETS) >= 8


def test_markers_are_taken_out_of_snippets():
    """What is looked at does not hold the answer, and lines keep their numbers."""
    snippet = next(one for one in SNIPPETS if one.name == "allow_without_a_reason")
    ((line, verdict),) = snippet.expected.items()

    assert verdict == "surely"
    assert snippet.source.splitlines()[line - 1].endswith("# gapless: allow()")
    assert not any("#!" in one.source for one in SNIPPETS)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_snippets_are_python(snippet: Snippet):
    """A snippet that does not parse would be right by chance."""
    compile(snippet.source, snippet.name, "exec")


@pytest.fixture
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and so do they theirs."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.slow
@pytest.mark.parametrize("run", PLAIN, ids=lambda run: run["name"])
def test_what_is_promised_of_scripts_is_what_python_does(run, tmp_path, ctrl_c_interrupts):
    """Exit codes and texts that the doctor must give are those of Python itself."""
    for name, text in files_of(run).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [sys.executable, *run["plain"]],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        input=run.get("stdin", ""),
    )

    assert done.returncode == run["exit"], done.stderr
    assert [text for text in run.get("stdout", []) if text not in done.stdout] == []
    assert [text for text in run.get("stderr", []) if text not in done.stderr] == []
    assert done.stdout == run.get("stdout_is", done.stdout)


def test_the_loop_of_the_table_is_python():
    """`LOOP` in a file stands for a loop that reads its loss."""
    compile(LOOP, "loop", "exec")
    assert "loss.item()" in LOOP


def test_entries_of_the_command_line_have_names_of_their_own():
    """And pairs that exclude each other stand once."""
    names = [entry["name"] for entry in COMMANDS["run"] + COMMANDS["refused"]]
    pairs = [frozenset(entry["flags"]) for entry in COMMANDS["excludes"]]

    assert len(set(names)) == len(names)
    assert len(set(pairs)) == len(pairs)
