"""Where ranks find each other before they are a group, and learn of one that will not come.

torchrun ends all ranks of its host as soon as one fails, but not if one exits with code 0, and not those
of other hosts. So a rank that ends before all have met writes that into the store over which they meet,
and no rank waits for it.
"""

from __future__ import annotations

import json
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from gapless.errors import RankLeftError, RanksError


if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from gapless.ranks.launch import Launch


# For all ranks to come: they start at about the same time, but a host may be slow to import.
SECONDS_TO_ARRIVE = 300.0

# A rank that leaves waits no longer than this for a store that may be gone.
_SECONDS_TO_TELL = 2.0

_SECONDS_BETWEEN_LOOKS = 0.05

# Set once all have come, or one has left: all wait for this key.
_MET = "met"

# Counts those that have read of a rank that left.
_READ = "read"


def store_of(launch: Launch, *, seconds: float = SECONDS_TO_ARRIVE) -> Store:
    """Return where ranks find each other, empty at each attempt.

    torchrun keeps one store over attempts, in which new ranks would find the addresses of dead ones.

    Args:
        launch: place of this process.
        seconds: in which it must be reached.
    """
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    return PrefixStore(f"gapless/attempt-{launch.attempt}", store)


def wait_for_all(store: Store, launch: Launch) -> None:
    """Wait until all ranks have come, for a limited time.

    Args:
        store: in which they find each other.
        launch: place of this process.

    Raises:
        RankLeftError: a rank ended before.
        RanksError: not all have come in time.

    Sync: Blocks the host until all ranks are here.
    """
    keys = list(map(_key, range(launch.world)))
    store.set(keys[launch.rank], "here")
    if store.check(keys):
        # Not where a rank has left meanwhile.
        store.compare_set(_MET, "", "")
    try:
        store.wait([_MET], timedelta(seconds=SECONDS_TO_ARRIVE))
    except dist.DistStoreError as error:
        missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
        raise RanksError(
            f"rank {missing} of {launch.world} did not come within {SECONDS_TO_ARRIVE:.0f} s; "
            "look at what they say, and start as many as torchrun was told on every host"
        ) from error
    left = store.get(_MET)
    if left:
        raise _left(store, *json.loads(left))


def another_has_failed(launch: Launch, *, seconds: float) -> bool:
    """Wait until rank 0 has come or a rank has left, and return whether it left with an error.

    Args:
        launch: place of this process.
        seconds: that this may take.

    Raises:
        RuntimeError: the store cannot be reached in time.

    Sync: Blocks the host until then.
    """
    end = monotonic() + seconds
    store = store_of(launch, seconds=seconds)
    while not store.check([_key(0)]) and not store.check([_MET]) and monotonic() < end:
        sleep(_SECONDS_BETWEEN_LOOKS)
    return store.check([_MET]) and _is_error(store.get(_MET))


def tell_of_leaving(launch: Launch, *, code: int, why: str) -> bool:
    """Tell ranks that wait for this one that it will not come.

    Args:
        launch: place of this process.
        code: that it exits with.
        why: it leaves, after "rank N"; empty: it says so itself.

    Returns:
        Whether none has left with an error before.

    Raises:
        RuntimeError: the store cannot be reached.

    Sync: Blocks the host for two seconds at most.
    """
    store = store_of(launch, seconds=_SECONDS_TO_TELL)
    own = json.dumps([launch.rank, code, why])
    found = store.compare_set(_MET, "", own)
    return found.decode() == own or not _is_error(found)


def _is_error(left: bytes) -> bool:
    """Whether a rank that has left did so because of an error; not if all have met."""
    return bool(left) and json.loads(left)[1] != 0


def _key(rank: int) -> str:
    """Return what a rank sets when it comes."""
    return f"rank-{rank}"


def _left(store: Store, rank: int, code: int, why: str) -> RankLeftError:
    is_told = not why or store.add(_READ, 1) > 1
    return RankLeftError(f"rank {rank} {why or 'ended before all ranks had met'}", code, is_told)
