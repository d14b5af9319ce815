"""Errors of connections to other ranks, in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from gapless.errors import PeerLostError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Of the ranks that this process has joined: waits a little, and does not return if a rank is lost.
_heartbeats: list[Callable[[], None]] = []


@contextmanager
def heartbeat_tells(let_tell: Callable[[], None]) -> Iterator[None]:
    """Let the heartbeat tell of a lost rank, by its number, where a connection fails in the body.

    Args:
        let_tell: waits a little, and does not return if a rank is lost.
    """
    _heartbeats.append(let_tell)
    try:
        yield
    finally:
        _heartbeats.remove(let_tell)


@contextmanager
def named_as_lost(what: str) -> Iterator[None]:
    """Raise PeerLostError for what torch raises where a connection is closed.

    Args:
        what: is done together with the other ranks.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_of_a_connection(error):
            raise
        for let_tell in _heartbeats:
            let_tell()
        raise PeerLostError(
            f"another rank is gone: the {what} of all ranks failed ({first_line(error)}); its own "
            "output says why"
        ) from error


def is_of_a_connection(error: RuntimeError) -> bool:
    """Return whether gloo or the store raised an error; gloo's are told from others by text alone."""
    of_store = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
    return of_store or "gloo" in str(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).partition("\n")[0]
