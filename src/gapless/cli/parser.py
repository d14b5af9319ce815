"""The parser of every command: plain argparse, whose mistakes are errors of one line.

It keeps what is added to it, since argparse lists its options under private names alone: the doctor must know
where the script of a user begins, and messages which parameters are options.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gapless.cli.output import print_result
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from _typeshed import SupportsWrite


class UsageError(UserError):
    """The command line holds an option, a value or a command that cannot be; `--help` says what can."""


def flag(name: str) -> str:
    """Return the flag of an option, such as `--warm-up` for `warm_up`."""
    return f"--{name.replace('_', '-')}"


class Group:
    """A group of options, under a title of the help.

    Args:
        add: adds an option to it.
        added: takes each option that was added.
    """

    def __init__(self, add: Callable[..., argparse.Action], added: list[argparse.Action]) -> None:
        self._add = add
        self._added = added

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an option, or a positional argument, as argparse does."""
        action = self._add(*names, **settings)
        self._added.append(action)
        return action


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose mistakes are exceptions, and whose help keeps its paragraphs.

    Args:
        settings: of an `ArgumentParser`.
    """

    def __init__(self, **settings: Any) -> None:
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
        # argparse adds --help at once.
        self._added: list[argparse.Action] = []
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)
        self._rest: tuple[str, str, Collection[str]] | None = None

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an option, or a positional argument, as argparse does."""
        action = super().add_argument(*names, **settings)
        self._added.append(action)
        return action

    def add_group(self, title: str) -> Group:
        """Add a group of options, which the help shows under a title."""
        return Group(self.add_argument_group(title).add_argument, self._added)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; see {self.prog} --help")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help as every result: argparse of some versions is silent where it cannot.

        Raises:
            OSError: standard output, which it names, does not take the help.
        """
        if file is None:
            print_result(self.format_help().removesuffix("\n"))
        else:
            super().print_help(file)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; those and positional arguments may stand in any order.

        Raises:
            UsageError: an argument is unknown, missing, or has a value that it cannot have.
            SystemExit: the help was asked for and has been printed.
        """
        ours, rest = self.split(arguments)
        options = self.parse_intermixed_args(ours)
        if rest and self._rest is not None:
            setattr(options, self._rest[0], rest)
        return options

    def leave_rest(self, dest: str, *, ends_after: str, unless: Collection[str]) -> None:
        """Leave what follows the first argument that is no option to somebody else.

        Args:
            dest: under which `parse` stores the rest, a list; a positional argument has it.
            ends_after: an option after whose value the rest begins as well.
            unless: options of which one makes all arguments ours.
        """
        self._rest = (dest, ends_after, unless)

    def split(self, arguments: Sequence[str]) -> tuple[Sequence[str], list[str]]:
        """Return the arguments that are ours, and those that are left to somebody else."""
        if self._rest is None:
            return arguments, []
        _, ends_after, unless = self._rest
        by_flag = {text: action for action in self._added for text in action.option_strings}
        at = 0
        while at < len(arguments) and arguments[at].startswith("-"):
            name, is_joined, _ = arguments[at].partition("=")
            if name in unless:
                return arguments, []
            at += 1 if is_joined or name not in by_flag else 1 + _num_values(by_flag[name])
            # With its value behind a space, or joined to it as in `-mpackage`.
            if name == ends_after or (name not in by_flag and name.startswith(ends_after)):
                break
        return arguments[:at], list(arguments[at:])

    def actions(self) -> list[argparse.Action]:
        """Return all options and positional arguments, in the order in which they were added."""
        return list(self._added)

    def parameters(self) -> set[str]:
        """Return the names under which options, but no positional arguments, are stored."""
        return {action.dest for action in self._added if action.option_strings}


def _num_values(action: argparse.Action) -> int:
    """Return the number of arguments that follow an option; one that may have none takes it by `=`."""
    if action.nargs is None:
        return 1
    return action.nargs if isinstance(action.nargs, int) else 0


def one_of(names: Iterable[str], *, metavar: str = "NAME") -> dict[str, Any]:
    """Return the arguments of `add_argument` for what takes one of these names."""
    return {"choices": tuple(names), "metavar": metavar}


def file_or_folder(text: str) -> Path:
    """Return the value of an option that takes a file or folder.

    Raises:
        argparse.ArgumentTypeError: the text is empty, as that of a variable which is not set; it would be
            the working folder.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"expected a file or folder, found {text!r}")
    return Path(text)


def count_or_auto(text: str) -> int | str:
    """Return the value of an option that takes a whole number or `auto`.

    Raises:
        argparse.ArgumentTypeError: the text is neither.
    """
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected auto or a whole number, found {text!r}"
        ) from None
