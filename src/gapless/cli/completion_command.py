"""`gapless completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.main import COMMANDS, command_parser
from gapless.cli.output import print_result
from gapless.cli.parser import one_of


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from gapless.cli.parser import Parser


DETAILS = """
Put one of these lines into the file that your shell reads when it starts:

  eval "$(gapless completion bash)"    # ~/.bashrc
  eval "$(gapless completion zsh)"     # ~/.zshrc, below compinit
"""

# Where nothing fits, `-o default` offers the names of files.
_SCRIPT = """\
_gapless() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words=
    if [ "$COMP_CWORD" = 1 ]; then
        words="{first}"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}} $current" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gapless gapless
"""

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    shell = parser.add_argument_group("shell")
    shell.add_argument(
        "shell", **one_of(("bash", "zsh")) | {"metavar": "SHELL"}, help="bash or zsh"
    )


def run(options: Namespace) -> int:
    """Print the script for a shell, made from the parsers of all commands."""
    script = _SCRIPT.format(
        first=" ".join([*COMMANDS, "--help", "--version"]),
        cases="\n".join(line for name in COMMANDS for line in _cases(name)),
    )
    print_result(f"{_ZSH}{script}" if options.shell == "zsh" else script)
    return 0


def _cases(name: str) -> Iterator[str]:
    """Yield the words to offer, by command, word before the current one, and current word."""
    parser = command_parser(name)
    options = [action for action in parser.actions() if action.option_strings]
    arguments = [action for action in parser.actions() if not action.option_strings]
    for option in options:
        if option.nargs != 0:  # it takes a value
            before = "|".join(f'"{name} {flag} "*' for flag in option.option_strings)
            yield _case(before, option.choices)
    flags = [flag for option in options for flag in option.option_strings]
    yield _case(f'"{name} "*" -"*', flags)
    values = [choice for argument in arguments for choice in argument.choices or ()]
    takes_any_text = any(argument.choices is None for argument in arguments)
    yield _case(f'"{name} "*', values if takes_any_text else values + flags)


def _case(pattern: str, words: Iterable[str] | None) -> str:
    return f'            {pattern}) words="{" ".join(words or ())}" ;;'
