"""Says errors of the library in the words of the command line."""

from __future__ import annotations

import errno
import platform
import sys
from typing import TYPE_CHECKING

from gapless import __version__
from gapless.device.memory_errors import describe_shortage


if TYPE_CHECKING:
    from collections.abc import Collection


def with_flags(message: str, names: Collection[str]) -> str:
    """Return a message of the library with flags for parameters.

    The library writes a parameter, or one with a value, as Python in backticks. What is an option
    of the command becomes its flag: `sync_interval` is --sync-interval, `device="cpu"` is
    --device cpu, and `pack=False` is --no-pack. So is what is said of gapless train, whatever the
    command is. Other backticks stay.

    Args:
        message: of the library.
        names: of the options that the command has.
    """
    parts = message.split("`")
    if len(parts) % 2 == 0:  # an odd number of backticks: some are part of a value
        return message
    for at in range(1, len(parts), 2):
        name, _, value = parts[at].partition("=")
        is_flag = name in names or parts[at - 1].endswith("gapless train ")
        parts[at] = _flag(name, value) if is_flag else f"`{parts[at]}`"
    return "".join(parts)


def _flag(name: str, value: str) -> str:
    name = name.replace("_", "-")
    if value in ("", "True"):
        return f"--{name}"
    return f"--no-{name}" if value == "False" else f"--{name} {value.strip(chr(34))}"


def memory_message(error: BaseException) -> str:
    """Return that memory is short, and for what."""
    return f"out of memory: {describe_shortage(error)}"


def bug_message(command: str) -> str:
    """Return what to do about an error that should not have been.

    Args:
        command: that raised it.
    """
    torch = sys.modules.get("torch")
    versions = (
        f"gapless {__version__}, Python {platform.python_version()}, "
        f"torch {getattr(torch, '__version__', 'not loaded')}, {platform.platform()}"
    )
    return (
        "this is a bug of gapless and no mistake of yours; report it to the project where you got "
        f"gapless from, with the lines above, how you called gapless {command}, and: {versions}"
    )


def disk_message(error: OSError, *, again: str = "run again") -> str:
    """Return what happened to which file, and what to do about a full disk.

    Args:
        error: of a read or a write.
        again: what to do when the disk has room.
    """
    where = f"{error.filename}: " if error.filename else ""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice.format(again=again)}"


_ADVICE = {
    errno.ENOSPC: "; free some space and {again}",
    errno.EROFS: "; name a place that can be written, or copy the run to one",
}
