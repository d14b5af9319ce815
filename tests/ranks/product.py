"""The names of gapless that the cases of several ranks call: the one place to change with them."""

from __future__ import annotations

import importlib


class NotBuiltError(Exception):
    """The product has no such thing yet."""


def named(module: str, name: str):
    """Return an object of the product.

    Raises:
        NotBuiltError: there is none of that name.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise NotBuiltError(f"not built yet: {module}.{name}") from error


def exit_peer_lost() -> int:
    """Return the exit code of a rank that lost another."""
    return named("gapless.errors", "EXIT_PEER_LOST")


def dealt_batches(pairs, layout, *, accumulate, rank, world, epoch, seed=1, skip=0):
    """Return the batches of one rank in an epoch, those of its first `skip` updates left out.

    Each has `pairs`, `shape`, `update_tokens` and `ends_update`.
    """
    sampler = named("gapless.nmt.data.sampler", "MicrobatchSampler")(
        pairs, layout, accumulate=accumulate, one_shape=True, seed=seed, rank=rank, world=world
    )
    sampler.set_epoch(epoch, skip=skip)
    return list(sampler)
