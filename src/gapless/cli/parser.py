"""The parser of every command: argparse, with errors and help as gapless words them."""

from __future__ import annotations

import argparse
import math
import shlex
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gapless.cli.output import print_result
from gapless.errors import UserError
from gapless.report.text import wrapped


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from _typeshed import SupportsWrite


class UsageError(UserError):
    """The command line holds an option, a value or a command that cannot be."""


# What options are called in other programs; the nearest of ours by its letters may be another.
_OTHER_NAMES = {
    "--data": ("input", "train", "train-data", "train-file", "file", "corpus", "dataset"),
    "--src": ("source", "source-lang", "src-lang", "from"),
    "--tgt": ("target", "target-lang", "tgt-lang", "trg", "to"),
    "--tgt-language": ("lang", "language"),
    "--run-dir": ("output", "output-dir", "out", "out-dir", "save-dir", "model-dir", "exp-dir"),
    "--device": ("gpu", "gpus", "cuda", "cpu", "use-gpu", "no-cuda"),
    "--precision": ("fp16", "bf16", "amp", "half", "mixed-precision", "dtype"),
    "--batch-size": ("bs", "batch", "per-device-train-batch-size", "train-batch-size"),
    "--batch-tokens": ("max-tokens", "tokens"),
    "--accumulate": ("gradient-accumulation-steps", "update-freq", "accum"),
    "--epochs": ("num-epochs", "num-train-epochs", "max-epoch", "max-epochs"),
    "--max-steps": ("steps", "max-update", "max-updates", "updates", "iterations", "train-steps"),
    "--max-time": ("time", "time-limit", "minutes"),
    "--patience": ("early-stop", "early-stopping-patience"),
    "--lr": ("learning-rate",),
    "--warmup": ("warmup-steps", "warmup-updates"),
    "--d-model": ("hidden", "hidden-size", "dim", "width", "emb-dim", "embed-dim"),
    "--encoder-layers": ("layers", "num-layers", "enc-layers"),
    "--workers": ("num-workers", "dataloader-num-workers"),
    "--init-from": ("finetune", "finetune-from", "pretrained", "init", "restore-file"),
    "--resume": ("checkpoint", "continue", "resume-from", "resume-from-checkpoint", "load"),
    "--seed": ("random-seed",),
    "--clip-norm": ("max-grad-norm", "grad-clip", "clip"),
}


def flag(name: str) -> str:
    """Return the flag of an option, such as `--warm-up` for `warm_up`."""
    return f"--{name.replace('_', '-')}"


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose mistakes are exceptions, and whose help keeps its paragraphs.

    Args:
        prog: what the usage line calls the program.
        description: first paragraphs of the help.
        usage: the usage line; None: made from the positional arguments.
        epilog: last paragraphs of the help.
    """

    def __init__(
        self, *, prog: str, description: str, usage: str | None = None, epilog: str | None = None
    ) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description.strip(),
            epilog=epilog,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        self._rest: tuple[str, str, Collection[str]] | None = None
        self._typed: list[str] = []

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: always.
        """
        message = message.removeprefix("argument ")
        name, _, found = message.partition(": ")
        if found == "expected one argument":
            message += self._found_after(name)
        # What argparse says of -hello, where -h is an option.
        if found.startswith("ignored explicit argument"):
            typed = next((one for one in self._typed if one.startswith(name[:2])), name)
            message = f"unknown option {typed}; {self._where_to_look()}"
        raise UsageError(message)

    def _where_to_look(self) -> str:
        """Return what to do about an option that is none."""
        takes_sentences = any(action.dest == "text" for action in self._actions)
        more = "; a sentence that begins with a hyphen stands behind --" if takes_sentences else ""
        return f"see {self.prog} --help{more}"

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help as every result: argparse of some versions is silent where it cannot.

        Raises:
            OSError: standard output, which it names, does not take the help.
        """
        if file is None:
            print_result(self.format_help().removesuffix("\n"))
        else:
            super().print_help(file)

    def _found_after(self, name: str) -> str:
        """Return what stands in the place of the value of an option, if it looks like an option."""
        names = name.split("/")
        for typed, following in pairwise(self._typed):
            if typed in names and following.startswith("-"):
                return f", found {following}, which looks like an option; write {typed}=VALUE"
        return ", found nothing"

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; those and positional arguments may stand in any order.

        Raises:
            UsageError: an argument is unknown, missing, or has a value that it cannot have.
            SystemExit: the help was asked for and has been printed.
        """
        ours, rest = self.split(arguments)
        self._typed = list(ours)
        options, unknown = self.parse_known_intermixed_args(ours)
        for argument in unknown:
            if argument.startswith("-"):
                name = argument.partition("=")[0]
                hint = _hint(name, self._option_string_actions)
                raise UsageError(f"unknown option {name}; {hint or self._where_to_look()}")
        if unknown:
            raise UsageError(f"unexpected argument {unknown[0]!r}; {self._meant_by(unknown[0])}")
        if rest and self._rest is not None:
            setattr(options, self._rest[0], rest)
        return options

    def _meant_by(self, argument: str) -> str:
        """Return what to do about an argument that is neither option nor expected."""
        without_dashes = argument.lstrip("\u2010\u2011\u2012\u2013\u2014\u2015\uff0d")
        if without_dashes != argument:
            return f"options begin with two hyphens: --{without_dashes}"
        if "--data" in self._option_string_actions and Path(argument).exists():
            return f"if it holds the pairs, write --data {shlex.quote(argument)}"
        return f"see {self.prog} --help"

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
        at = 0
        while at < len(arguments) and arguments[at].startswith("-"):
            name, is_joined, _ = arguments[at].partition("=")
            if name in unless:
                return arguments, []
            action = self._option_string_actions.get(name)
            num_values = 0 if action is None or is_joined else _num_values(action)
            at += 1 + num_values
            if name == ends_after or (action is None and _is_joined_to(ends_after, name)):
                break
        return arguments[:at], list(arguments[at:])

    def actions(self) -> list[argparse.Action]:
        """Return all options and positional arguments, in the order of the help."""
        return list(self._actions)

    def parameters(self) -> set[str]:
        """Return the names under which options, but no positional arguments, are stored."""
        return {action.dest for action in self._actions if action.option_strings}


def _is_joined_to(flag: str, word: str) -> bool:
    """Whether a word is a flag of one letter with its value, such as `-mpackage`."""
    return len(flag) == 2 and word.startswith(flag)


def _num_values(action: argparse.Action) -> int:
    if action.nargs is None:
        return 1
    return action.nargs if isinstance(action.nargs, int) else 0


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the usage to one line: `train` alone has fifty options. Text that is too wide is broken."""

    def __init__(self, prog: str) -> None:
        super().__init__(f"{prog} [options]", max_help_position=32)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [part for line in text.splitlines() for part in wrapped(line, width, indent=0)]
        return "\n".join(f"{indent}{line}" for line in lines)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Show positional arguments alone."""
        positional = [action for action in actions if not action.option_strings]
        super().add_usage(usage, positional, groups, prefix)


def _hint(name: str, known: Collection[str]) -> str:
    """Return a hint at the option that is meant by another, as other programs call it or nearly so."""
    word = name.lstrip("-").replace("_", "-")
    meant = next((ours for ours, words in _OTHER_NAMES.items() if word in words), None)
    return f"did you mean {meant}?" if meant in known else did_you_mean(name, known)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest of the known names; empty if none is near."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, list(known), n=1)
    return f"did you mean {nearest[0]}?" if nearest else ""


def file_or_folder(text: str) -> Path:
    """Return the value of an option that takes a file or folder.

    Raises:
        argparse.ArgumentTypeError: the text is empty, which would be the working folder.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"expected a file or folder, found {text!r}; name one, or leave it out"
        )
    return Path(text)


def whole_number(text: str) -> int:
    """Return the value of an option that takes a whole number.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}") from None


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


def positive_number(text: str) -> int:
    """Return the value of an option that takes a whole number of 1 or more.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, found {text}")
    return value


def number(text: str) -> float:
    """Return the value of an option that takes a number.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}") from None


def finite_number(text: str) -> float:
    """Return the value of an option that takes a number, but neither NaN nor infinity.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    value = number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")
    return value


def one_of(names: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option that takes one of these names."""
    known = tuple(names)

    def name(text: str) -> str:
        if text not in known:
            hint = did_you_mean(text, known)
            expected = f"expected one of {', '.join(known)}, found {text!r}"
            raise argparse.ArgumentTypeError(f"{expected}; {hint}" if hint else expected)
        return text

    # The type comes first and words the error; the choices are for the completion.
    return {"type": name, "choices": known, "metavar": "NAME"}
