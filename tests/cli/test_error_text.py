"""Errors of the library, said in flags."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gapless as package
from gapless.cli.error_text import with_flags


SRC = Path(package.__file__).parent

# Of git, which `compare` asks for the commit.
GITS = ("--always", "--dirty=+", "--exclude=*")

NAMES = {"sync_interval", "device", "pack", "seed"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`sync_interval` must be at least 1", "--sync-interval must be at least 1"),
        ('no GPU here; use `device="cpu"`', "no GPU here; use --device cpu"),
        ("add `seed=3` or more", "add --seed 3 or more"),
        ("add `pack=True` or `pack=False`", "add --pack or --no-pack"),
        ("`wait_with` must be `seed`", "`wait_with` must be --seed"),
        ("use `depth=2`", "use `depth=2`"),
        ("go on with gapless train `resume=r`", "go on with gapless train --resume r"),
        ("the seed of the device", "the seed of the device"),
        ("unknown plan 'a`b'; set `seed`", "unknown plan 'a`b'; set `seed`"),
    ],
)
def test_parameters_in_backticks_become_flags(message, expected):
    """Options of the command do; other names, plain words and stray backticks stay as they are."""
    assert with_flags(message, NAMES) == expected


def test_the_library_never_speaks_of_flags():
    """No text outside the command line names one: who calls a function has none to set.

    But for those of the doctor that say what to type, and for pages, which commands alone write.
    """
    named = {
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in SRC.rglob("*.py")
        if path.parent not in (SRC / "cli", SRC / "report" / "html")
        for node in _texts(ast.parse(path.read_text(encoding="utf-8")))
        if re.search(r"(^|[\s(`])(?<!gapless doctor )--[a-z]", node.value)
        and node.value not in GITS
    }

    assert named == set()


def _texts(tree):
    """Return the strings of a module that are no docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


@pytest.mark.parametrize("command", [["train"], ["translate", "x"], ["evaluate"]])
def test_a_bug_of_ours(gapless, tiny_run, monkeypatch, command):
    """Its traceback is shown, and then to whom to report it, with what."""

    def fail(*_, **__):
        raise KeyError("unforeseen")

    monkeypatch.setattr("gapless.nmt.run.new_run.new_run", fail)
    monkeypatch.setattr("gapless.nmt.run.translator.load_model", fail)
    name, *rest = command
    outcome = gapless(name, *([] if name == "train" else [tiny_run]), *rest)

    assert outcome.code == 1
    *lines, last = outcome.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'unforeseen'"
    assert last.startswith("gapless: error: this is a bug of gapless and no mistake of yours;")
    assert all(part in last for part in (f"gapless {name}", "Python 3.", "torch 2."))


def test_too_little_memory(gapless, monkeypatch):
    """Memory that is short is no bug: one line, with the bytes that were asked for."""

    def fail(*_, **__):
        raise RuntimeError(
            "can't allocate memory: you tried to allocate 12000 bytes. Error code 12"
        )

    monkeypatch.setattr("gapless.nmt.run.new_run.assemble", fail)
    outcome = gapless("train")

    assert outcome.code == 1
    assert "out of memory while building the model: 12,000 bytes were asked for" in outcome.err
    assert "lower --d-model, --ffn" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_too_little_memory_to_translate(gapless, tiny_run, tmp_path, monkeypatch, command):
    """Whether it is short for the model or for the search, one line says what to do."""

    def fail(*_, **__):
        raise RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported\n"
        )

    text = ["a b"] if command == "translate" else ["--out", str(tmp_path)]
    monkeypatch.setattr("gapless.nmt.model.decode.Decoder.translate", fail)
    outcome = gapless(command, str(tiny_run), *text)
    monkeypatch.setattr("gapless.nmt.run.translator.load_model", fail)
    of_model = gapless(command, str(tiny_run), *text)

    assert outcome.code == of_model.code == 1
    error = "gapless: error: out of memory while"
    assert outcome.err.endswith(
        f"{error} translating: CUDA error: out of memory; lower --batch or --beam\n"
    )
    assert of_model.err == (
        f"{error} loading the model: CUDA error: out of memory; end other programs that hold the "
        "device's memory, or choose another --device\n"
    )
