"""What `prefetch` must do with a kind of batch, on any device."""

from __future__ import annotations

import gc
import warnings
import weakref

import torch

import gapless
from anybody.batches import batch_of


NUM = 5


def every_tensor(kind, device, torch_device, *, depth):
    """Assert that batches arrive on the device, in the loader's order, with the very same others."""
    expected = [kind.tensors(batch_of(kind, number)) for number in range(NUM)]
    own, arrived, said = _prefetched(kind, device, depth=depth)
    found = [kind.tensors(batch) for batch in arrived]

    assert said == []
    assert {one.device for row in found for one in row} == _places_of(kind, torch_device)
    assert [
        [torch.equal(one.cpu(), two) for one, two in zip(*pair, strict=True)]
        for pair in zip(found, expected, strict=True)
    ] == [[True] * len(row) for row in expected]
    assert [type(batch) for batch in arrived] == [type(batch) for batch in own]
    for before, after in zip(own, arrived, strict=True):
        pairs = zip(kind.others(before), kind.others(after), strict=True)
        assert all(one is two for one, two in pairs)
    if not kind.in_one:
        left = {str(one.device) for batch in own for one in kind.tensors(batch)}
        assert left == {"cpu"}, "the loader's own batch was changed"


def kept(kind, device):
    """Return the tensors that are still there when the loop has let all batches go."""
    _, arrived, _ = _prefetched(kind, device)
    held = [weakref.ref(one) for batch in arrived for one in kind.tensors(batch)]
    arrived.clear()
    _ = None
    gc.collect()
    return [one for one in held if one() is not None]


def none_in_silence(kind, device, torch_device):
    """Assert that all tensors arrive on the device, or that one line names what they are in."""
    name = type(batch_of(kind, 0)).__name__
    try:
        _, arrived, said = _prefetched(kind, device)
    except gapless.BatchError as error:
        arrived, said = [], [str(error)]
    places = {one.device for batch in arrived for one in kind.tensors(batch)}

    if places != {torch_device}:
        assert any(name in line for line in said), said


def _prefetched(kind, device, **options):
    """Return a loader's batches, those that arrive, and all that was warned of."""
    own = [batch_of(kind, number) for number in range(NUM)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        arrived = list(gapless.prefetch(own, device, **options))
    return own, arrived, [str(one.message) for one in warned]


def _places_of(kind, torch_device):
    """Return where tensors must be: where the batch's own `to` brings them, if there is one."""
    batch = batch_of(kind, 0)
    if not hasattr(batch, "to"):
        return {torch_device}
    return {one.device for one in kind.tensors(batch.to(torch_device))}
