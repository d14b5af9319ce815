"""How options are read: any order, whole names, and a mistake is one line that names `--help`."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest

from gapless.cli import main
from gapless.cli.main import COMMANDS, command_parser
from gapless.cli.parser import Parser, UsageError, count_or_auto, file_or_folder, one_of
from gapless.nmt.settings.config import TrainConfig


@pytest.fixture
def parser():
    made = Parser(prog="tool", description="Does it.")
    made.add_argument("run")
    made.add_argument("text", nargs="*", default=None)
    made.add_argument("--steps", type=int)
    made.add_argument("--rate", type=float)
    made.add_argument("--every", type=count_or_auto)
    made.add_argument("--out", type=file_or_folder)
    made.add_argument("--mode", **one_of(("fast", "slow")))
    made.add_argument("--pack", action=argparse.BooleanOptionalAction, default=None)
    return made


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["r", "a", "b", "--steps", "3"], ["a", "b"]),
        (["r", "--steps", "3", "a", "b"], ["a", "b"]),
        (["--steps=3", "r", "a", "b"], ["a", "b"]),
        (["r", "--steps", "3", "--", "-hello"], ["-hello"]),
    ],
)
def test_options_may_stand_before_between_and_after_arguments(parser, arguments, text):
    """Every order gives the same; behind two hyphens stands a sentence that begins with one."""
    options = parser.parse(arguments)

    assert (options.run, options.text, options.steps) == ("r", text, 3)


def test_what_is_not_given_is_none(parser):
    """None says that an option was not given; a switch has two ways to be, and a minus begins no option."""
    options = vars(parser.parse(["r"]))
    given = {name for name, value in options.items() if value is not None}
    negative = parser.parse(["r", "--steps", "-3", "--rate", "-0.5", "--every", "auto"])

    assert given == {"run", "text"}
    assert parser.parse(["r", "--pack"]).pack is True
    assert parser.parse(["r", "--no-pack"]).pack is False
    assert (negative.steps, negative.rate, negative.every) == (-3, -0.5, "auto")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["run"]),
        (["r", "--steps"], ["--steps"]),
        (["r", "--steps", "2.5"], ["--steps", "'2.5'"]),
        (["r", "--rate", "fast"], ["--rate", "'fast'"]),
        (["r", "--every", "1:30"], ["--every", "auto or a whole number", "'1:30'"]),
        (["r", "--out", " "], ["--out", "a file or folder", "' '"]),
        (["r", "--mode", "fats"], ["--mode", "fast", "slow", "'fats'"]),
        # No option is guessed from its beginning.
        (["r", "--step", "3"], ["--step "]),
        (["r", "--unlike"], ["--unlike"]),
    ],
)
def test_a_mistake_names_the_option_and_the_help(parser, arguments, parts):
    """It is an error of one line."""
    with pytest.raises(UsageError) as refused:
        parser.parse(arguments)

    said = str(refused.value)
    assert [part for part in parts if part not in said] == []
    assert said.endswith("; see tool --help")
    assert "\n" not in said


def test_an_argument_too_many_is_named():
    """A command without arguments takes none."""
    with pytest.raises(UsageError, match="x; see gapless plans --help"):
        command_parser("plans").parse(["x"])


def test_every_setting_of_a_run_is_an_option_of_train():
    """With its help and its default, in a group."""
    text = command_parser("train").format_help()
    flat = " ".join(text.split())

    for item in fields(TrainConfig):
        assert f"--{item.name.replace('_', '-')}" in text
        assert item.metadata["help"] in flat
    for title in ("data", "batches", "optimizer and schedule"):
        assert f"\n{title}:\n" in text
    assert "highest learning rate [default: chosen]" in flat
    assert "[default: 0.1]" in flat
    assert "--pin-memory, --no-pin-memory" in flat


def test_compare_has_the_settings_that_all_plans_can_share():
    """Sizes and batches are options of it, what a plan or a whole run says is not."""
    names = command_parser("compare").parameters()

    assert {"d_model", "batch_size", "workers", "compile"} <= names
    assert "[default: 0.0007]" in command_parser("compare").format_help()
    assert not names & {"plan", "sync_interval", "epochs", "run_dir", "resume"}


def test_no_private_name_of_argparse_is_used():
    """Its releases may rename them; also one that a class of ours inherits."""
    parser = argparse.ArgumentParser()
    owners = (argparse, parser, parser.add_argument_group("a"), parser.add_argument("--b"))
    private = {name for one in owners for name in dir(one) if re.fullmatch(r"_[a-zA-Z]\w*", name)}
    used = {
        f"{path.name}: {name}"
        for path in Path(main.__file__).parent.glob("*.py")
        for name in re.findall(r"\b_\w+", path.read_text(encoding="utf-8"))
        if name in private
    }

    assert "_actions" in private
    assert used == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_can_be_scanned(name, monkeypatch):
    """It fits a terminal, its usage is one line, and few options stand outside of a named group."""
    monkeypatch.setenv("COLUMNS", "80")
    text = command_parser(name).format_help()
    own = re.search(r"^options:\n(.*?)(\n\n|\Z)", text, re.MULTILINE | re.DOTALL)[1]

    assert max(map(len, text.splitlines())) <= 80
    assert re.match(rf"usage: gapless {name} \[options\].*\n\n", text)
    assert len(re.findall(r"^  -", own, re.MULTILINE)) <= 3


@pytest.mark.parametrize(
    ("arguments", "rest", "module"),
    [
        (["s.py", "--steps", "3", "--help"], ["s.py", "--steps", "3", "--help"], None),
        (["--steps", "3", "s.py", "--mode"], ["s.py", "--mode"], None),
        (["--steps=3", "--try", "s.py"], ["s.py"], None),
        (["--", "s.py", "--", "-x"], ["s.py", "--", "-x"], None),
        (["-m", "package", "--steps", "4", "a"], ["--steps", "4", "a"], "package"),
        (["-mpackage", "--steps", "4"], ["--steps", "4"], "package"),
        # Here everything is ours.
        (["--all", "a", "--steps", "3", "b"], ["a", "b"], None),
    ],
)
def test_what_follows_a_script_is_the_scripts(arguments, rest, module):
    """Options of the same name too; unless an option says that there is no script."""
    made = Parser(prog="tool", description="Runs it.")
    made.add_argument("script", nargs="*")
    made.add_argument("-m", dest="module")
    made.add_argument("--steps", type=int)
    made.add_argument("--try", nargs="?", const="")
    made.add_argument("--all", action="store_true")
    made.leave_rest("script", ends_after="-m", unless=("--all",))

    options = made.parse(arguments)

    assert (options.script, options.module) == (rest, module)
    assert options.steps == (3 if "3" in "".join(arguments).partition("s.py")[0] else None)
