"""Lets the processes that torchrun starts run a command of gapless, such as the doctor, which runs the script."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.scripts import Program


_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def is_launcher(program: Program) -> bool:
    """Return whether a program is torchrun, by whichever name."""
    if program.is_module:
        return program.target in _MODULES
    return Path(program.target).name == "torchrun"


def launcher_as_module(program: Program) -> Program:
    """Return torchrun as the module that it is: its name on a command line is no file of the user's."""
    if program.is_module:
        return program
    return replace(program, target="torch.distributed.run", is_module=True)


def with_command_in_workers(program: Program, command: Sequence[str]) -> Program | None:
    """Return a launcher whose processes run `gapless` on its script; None if they run no Python script.

    Args:
        program: the launcher.
        command: of gapless in each process, with its options.
    """
    words = list(program.arguments)
    asked = _parsed(words)
    if asked is None or asked.no_python:
        return None
    place = len(words) - len(asked.training_script_args) - 1
    if place < 0 or words[place] != asked.training_script:
        return None
    script = [*(["-m"] if asked.module else []), *words[place:]]
    before = [*words[:place], *([] if asked.module else ["-m"])]
    return replace(program, arguments=(*before, "gapless", *command, *script))


def _parsed(words: Sequence[str]) -> Any:
    """Return the launcher's options; None if it will refuse them itself."""
    from torch.distributed.run import get_args_parser  # noqa: TID251  # to read options alone

    sys.modules.pop("torch.distributed.run")  # or Python warns when it is run
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return get_args_parser().parse_args(words)
    except SystemExit:
        return None
