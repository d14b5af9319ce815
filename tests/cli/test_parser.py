"""How options are read: any order, whole names, and hints at the nearest one."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields

import pytest

from gapless.cli.main import COMMANDS, command_parser
from gapless.cli.parser import _OTHER_NAMES, Parser, UsageError, number, one_of, whole_number
from gapless.nmt.run.config import TrainConfig


@pytest.fixture
def parser():
    made = Parser(prog="tool", description="Does it.")
    made.add_argument("run")
    made.add_argument("text", nargs="*", default=None)
    made.add_argument("--steps", type=whole_number)
    made.add_argument("--rate", type=number)
    made.add_argument("--mode", **one_of(("fast", "slow")))
    made.add_argument("--pack", action=argparse.BooleanOptionalAction, default=None)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        ["r", "a", "b", "--steps", "3"],
        ["r", "--steps", "3", "a", "b"],
        ["--steps=3", "r", "a", "b"],
        ["--steps", "3", "--", "r", "a", "b"],
    ],
)
def test_options_may_stand_before_between_and_after_arguments(parser, arguments):
    """Every order gives the same."""
    options = parser.parse(arguments)

    assert (options.run, options.text, options.steps) == ("r", ["a", "b"], 3)


@pytest.mark.parametrize(("argument", "name"), [("-hello", "-hello"), ("--really?", "--really?")])
def test_a_sentence_that_looks_like_an_option_is_told_where_to_stand(parser, argument, name):
    """Behind two hyphens, where it is taken as it is."""
    with pytest.raises(UsageError) as caught:
        parser.parse(["r", argument])

    assert str(caught.value) == (
        f"unknown option {name}; see tool --help; a sentence that begins with a hyphen stands behind --"
    )
    assert parser.parse(["r", "--", argument]).text == [argument]


def test_what_is_not_given_is_none(parser):
    """None says that an option was not given, and a switch has two ways to be."""
    options = vars(parser.parse(["r"]))
    given = {name for name, value in options.items() if value is not None}

    assert given == {"run", "text"}
    assert parser.parse(["r", "--pack"]).pack is True
    assert parser.parse(["r", "--no-pack"]).pack is False


def test_negative_numbers_are_values(parser):
    """A value that begins with a minus is no option."""
    options = parser.parse(["r", "--steps", "-3", "--rate", "-0.5"])

    assert (options.steps, options.rate) == (-3, -0.5)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["required", "run"]),
        (["r", "--steps"], ["--steps", "expected one argument"]),
        (["r", "--steps", "2.5"], ["--steps", "a whole number", "'2.5'"]),
        (["r", "--rate", "fast"], ["--rate", "a number", "'fast'"]),
        (["r", "--mode", "fats"], ["--mode", "fast, slow", "'fats'", "did you mean fast?"]),
        (["r", "--mode", "x"], ["--mode", "fast, slow", "'x'"]),
        (["r", "--step", "3"], ["--step;", "did you mean --steps?"]),
        (["r", "--setps=3"], ["--setps;", "did you mean --steps?"]),
        (["r", "--unlike"], ["--unlike;", "tool --help"]),
    ],
)
def test_a_mistake_names_what_was_found_and_what_was_expected(parser, arguments, parts):
    """Also the nearest option, or value, where one is near; no option is guessed."""
    with pytest.raises(UsageError) as refused:
        parser.parse(arguments)

    assert [part for part in parts if part not in str(refused.value)] == []


def test_an_argument_too_many_is_named():
    """A command without arguments takes none."""
    with pytest.raises(UsageError, match="unexpected argument 'x'; see gapless plans --help"):
        command_parser("plans").parse(["x"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("pairs.tsv", "if it holds the pairs, write --data pairs.tsv"),
        ("nowhere.tsv", "see gapless train --help"),
        ("—data", "options begin with two hyphens: --data"),
        ("－－data", "options begin with two hyphens: --data"),
    ],
)
def test_what_an_unexpected_argument_was_meant_to_be(tmp_path, monkeypatch, argument, said):
    """A file of text, or an option whose hyphens a keyboard or a page has changed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").touch()

    with pytest.raises(UsageError, match=re.escape(f"{argument!r}; {said}")):
        command_parser("train").parse([argument])


def test_every_setting_of_a_run_is_an_option_of_train():
    """With its help and its default, in the group that the setting names."""
    text = command_parser("train").format_help()
    flat = " ".join(text.split())

    for item in fields(TrainConfig):
        assert f"--{item.name.replace('_', '-')}" in text
        assert item.metadata["help"] in flat
        assert f"\n{item.metadata['group']}:\n" in text
    assert "highest learning rate [default: chosen]" in flat
    assert "[default: 0.1]" in flat
    assert "--pin-memory, --no-pin-memory" in flat


def test_compare_has_the_settings_that_all_plans_can_share():
    """Sizes and batches are options of it, what a plan or a whole run says is not."""
    names = command_parser("compare").parameters()

    assert {"d_model", "batch_size", "workers", "compile"} <= names
    assert "[default: 0.0007]" in command_parser("compare").format_help()
    assert not names & {"plan", "sync_interval", "epochs", "run_dir", "resume"}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_named_groups(name):
    """Outside of groups there are few, so that the help of every command can be scanned."""
    parser = command_parser(name)
    (own,) = (group for group in parser._action_groups if group.title == "options")

    assert len(own._group_actions) <= 3


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
    made.add_argument("--steps", type=whole_number)
    made.add_argument("--try", nargs="?", const="")
    made.add_argument("--all", action="store_true")
    made.leave_rest("script", ends_after="-m", unless=("--all",))

    options = made.parse(arguments)

    assert (options.script, options.module) == (rest, module)
    assert options.steps == (3 if "3" in "".join(arguments).partition("s.py")[0] else None)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lang", "--tgt-language"),
        ("--bs=8", "--batch-size"),
        ("--gpu", "--device"),
        ("--fp16", "--precision"),
        ("--output_dir", "--run-dir"),
        ("--learning-rate", "--lr"),
        ("--num-workers", "--workers"),
        ("--epoch", "--epochs"),
    ],
)
def test_names_of_other_programs_lead_to_ours(typed, meant):
    """Not to the option that is nearest by its letters."""
    with pytest.raises(UsageError, match=f"; did you mean {meant}"):
        command_parser("train").parse([typed])


def test_every_option_that_other_names_lead_to_exists():
    """And no name is one of ours that means something else."""
    ours = {text for action in command_parser("train").actions() for text in action.option_strings}

    assert [name for name in _OTHER_NAMES if name not in ours] == []
    words = [f"--{word}" for words in _OTHER_NAMES.values() for word in words]
    assert sorted(set(words) & ours) == []
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (
            ["--max-time", "-5min"],
            "found -5min, which looks like an option; write --max-time=VALUE",
        ),
        (["--max-time", "--seed", "3"], "found --seed, which looks like an option"),
        (["--seed", "3", "--max-time"], "found nothing"),
    ],
)
def test_an_option_without_its_value(typed, found):
    """What stands in its place is named."""
    with pytest.raises(UsageError, match=f"--max-time: expected one argument, {found}"):
        command_parser("train").parse(typed)
