"""Ask several ranks for all that `TorchRanks` offers; each rank prints JSON of what it got.

Run as `group_program.py DEVICE CASE...`, under the environment of torchrun: the ranks meet once, and do
one case after the other.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from contextlib import contextmanager

import torch

import gapless.ranks.agreement as agreement_room
from gapless.device.find import find_device, num_gpus
from gapless.errors import GaplessError, RanksDifferError
from gapless.nmt.run.rank_agreement import check_same_weights
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import find_ranks
from gapless.ranks.launch import device_of, read_launch
from ranks.sum_program import SUMS


# What ranks send each other: plain values of any kind and size, and tensors of any type and shape.
VALUES = [None, 3, "text", {"a": (1, 2.5)}, b"\0" * 3_000_000, ["é", float("inf")]]
SHAPES = [(), (0,), (5,), (2, 3), (1000, 7)]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool]


def counted(waits):
    """Return what notes each wait."""

    @contextmanager
    def blocking(reason):
        waits.append(reason)
        yield

    return blocking


def values(ranks):
    """Everything that comes back at once."""
    rows = torch.arange(6.0).view(3, 2).t() + 10 * ranks.rank  # not contiguous
    weight = torch.nn.Parameter(torch.ones(3))
    summed = ranks.sum_gradients([weight])
    (weight * (ranks.rank + 1)).sum().backward()
    summed.finish()
    return {
        "place": [ranks.rank, ranks.world, ranks.is_first],
        "agree": ranks.agree({"rank": ranks.rank}),
        "share": ranks.share(["of", ranks.rank]),
        "rows": ranks.gather_rows(rows).tolist(),
        "none": list(ranks.gather_rows(rows[:0]).shape),
        "sum": weight.grad.tolist(),
    }


def told(ranks):
    """Return what came back otherwise than it was sent."""
    wrong = []
    for value in VALUES:
        if ranks.agree((ranks.rank, value)) != [(rank, value) for rank in range(ranks.world)]:
            wrong.append(f"agree: {value!r:.20}")
        if ranks.share((ranks.rank, value)) != (0, value):
            wrong.append(f"share: {value!r:.20}")
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        gathered = ranks.gather_rows(torch.full(shape, ranks.rank).to(dtype))
        expected = torch.stack([torch.full(shape, rank).to(dtype) for rank in range(ranks.world)])
        if gathered.dtype != dtype or not torch.equal(gathered, expected):
            wrong.append(f"gather_rows: {shape}, {dtype}")
    return wrong


def flags(ranks):
    """Rank 1 raises flags; all act on them after the same updates."""
    waits = []
    agreement = ranks.agreement(("stop", "failed"), blocking=counted(waits), every=3)
    raised = {1: ("stop", 1), 4: ("stop", 2), 10: ("failed", 1)}
    seen = {}
    for update in range(1, 12):
        if ranks.rank == 1 and update in raised:
            agreement.ask(*raised[update])
        if ranks.rank == 0 and update == 2:
            agreement.ask("stop", 3)
        # A program may have its tensors made elsewhere; flags stay on the host.
        with torch.device("meta"):
            agreed = agreement.after_update(update)
        # What else goes over the same group does not disturb an exchange under way.
        assert ranks.agree(update) == [update] * ranks.world
        if agreed:
            seen[update] = agreed
    return {"seen": seen, "last": agreement.finish(), "waits": waits}


def slow(ranks):
    """Updates of rank 1 take 0.1 s, and 3 s from the 21st on; rank 0 raises flags at some of them."""
    now, waits = 0.0, []
    agreement_room.perf_counter = lambda: now
    agreement = ranks.agreement(("stop", "failed"), blocking=counted(waits))
    raised = {1: ("stop", 1), 6: ("stop", 2), 27: ("failed", 3), 31: ("stop", 4)}
    seen = {}
    for update in range(1, 33):
        now += 0.001 if ranks.rank == 0 else 0.1 if update <= 20 else 3.0
        if ranks.rank == 0 and update in raised:
            agreement.ask(*raised[update])
        if agreed := agreement.after_update(update):
            seen[update] = agreed
    return {"seen": seen, "last": agreement.finish(), "waits": len(waits)}


def weights(ranks):
    """After update 7 all hold the same; after update 8 one bit of one weight differs on rank 1."""
    host_waits = HostWaits(find_device(torch.empty(0).device))
    named = {"table": torch.ones(5, 3), "bias": torch.zeros(4, dtype=torch.bfloat16)}
    check_same_weights(named, ranks, host_waits=host_waits, updates=7)
    waits = {reason: wait.count for reason, wait in host_waits.stats.by_reason.items()}
    if ranks.rank == 1:
        named["bias"][3] = -0.0
    try:
        check_same_weights(named, ranks, host_waits=host_waits, updates=8)
    except RanksDifferError as error:
        return {"waits": waits, "said": str(error)}
    return None


def is_left(ranks):
    """Rank 1 ends without a word, while rank 0 waits for it."""
    # A rank that goes while another one still connects cannot be reached, which is something else.
    ranks.agree("here")
    if ranks.rank == 1:
        os._exit(0)
    ranks.agreement(("stop",), blocking=counted([])).finish()


def raises(ranks):
    """Rank 1 raises what nobody catches, while the ranks agree again and again."""
    agreement = ranks.agreement(("stop",), blocking=counted([]), every=1)
    for update in range(1, 1_000_000):
        ranks.note_updates(update)
        agreement.after_update(update)
        if update == 10 and ranks.rank == 1:
            raise RuntimeError("planted in one rank")


CASES = {
    **{one.__name__: one for one in (values, told, flags, slow, weights, is_left, raises)},
    **SUMS,
}

# All that the ranks live through.
LIVING = ["values", "told", "flags", "slow", "weights", *SUMS]


def found_by(case, ranks):
    """Return what a case finds; the traceback of one that fails, so that the others go on."""
    if case not in LIVING:
        return CASES[case](ranks)
    try:
        return CASES[case](ranks)
    except Exception:
        return traceback.format_exc()


def main():
    name, *cases = sys.argv[1:]
    launch = read_launch(os.environ)
    device = find_device(device_of(launch, name, num_gpus=num_gpus()))
    device.make_current()
    torch.set_default_device(device.torch_device)
    uuid = "GPU-1234" if cases == ["one gpu"] else device.uuid()
    try:
        ranks = find_ranks(device.torch_device, uuid=uuid)
        found = {case: found_by(case, ranks) for case in cases}
        ranks.end()
    except GaplessError as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
