"""Refuses to be one of several processes that torchrun starts: training uses one GPU."""

from __future__ import annotations

import os
import signal
import threading

from gapless.errors import UserError


# Exit code of every rank, that of a mistake in what was asked.
REFUSED = 2

# torchrun ends all ranks as soon as one does. The others wait, so that the first can say why.
_SECONDS_FOR_FIRST_RANK = 10.0


def number_of_ranks() -> int:
    """Return how many processes torchrun started; 1 if it started none or a single one."""
    if "LOCAL_RANK" not in os.environ:
        return 1
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() else 1


def refuse_ranks(command: str) -> None:
    """Refuse to be one of several ranks. The first says so; the others end quietly, after it.

    Args:
        command: that trains on one GPU.

    Raises:
        UserError: this is the first of several.
        SystemExit: this is another.
    """
    ranks = number_of_ranks()
    if ranks <= 1:
        return
    if os.environ.get("RANK", "0") == "0":
        raise UserError(
            f"{command} uses one GPU, but torchrun started it {ranks} times; "
            f"start it once, without torchrun: several GPUs are not supported yet"
        )
    is_ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ended.set())
    is_ended.wait(_SECONDS_FOR_FIRST_RANK)
    raise SystemExit(REFUSED)
