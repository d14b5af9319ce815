"""Ask several ranks for all that `TorchRanks` offers; each rank prints JSON of what it got.

Run as `group_program.py CASE [DEVICE]`, under the environment of torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager

import torch

import gapless.ranks.agreement as agreement_room
from gapless.device.find import find_device, num_gpus
from gapless.errors import GaplessError, RanksDifferError
from gapless.nmt.run.same_weights import check_same_weights
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import find_ranks
from gapless.ranks.launch import device_of, read_launch


WAITS = []


@contextmanager
def blocking(reason):
    WAITS.append(reason)
    yield


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


def flags(ranks):
    """Rank 1 raises flags; all act on them after the same updates."""
    agreement = ranks.agreement(("stop", "failed"), blocking=blocking, every=3)
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
    return {"seen": seen, "last": agreement.finish(), "waits": WAITS}


def slow(ranks):
    """Updates of rank 1 take 0.1 s, and 3 s from the 21st on; rank 0 raises flags at some of them."""
    now = 0.0
    agreement_room.perf_counter = lambda: now
    agreement = ranks.agreement(("stop", "failed"), blocking=blocking)
    raised = {1: ("stop", 1), 6: ("stop", 2), 27: ("failed", 3), 31: ("stop", 4)}
    seen = {}
    for update in range(1, 33):
        now += 0.001 if ranks.rank == 0 else 0.1 if update <= 20 else 3.0
        if ranks.rank == 0 and update in raised:
            agreement.ask(*raised[update])
        if agreed := agreement.after_update(update):
            seen[update] = agreed
    return {"seen": seen, "last": agreement.finish(), "waits": len(WAITS)}


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


def lost(wait):
    """Rank 1 ends without a word, while rank 0 waits for it."""

    def case(ranks):
        # A rank that goes while another one still connects cannot be reached, which is something else.
        ranks.agree("here")
        if ranks.rank == 1:
            os._exit(0)
        wait(ranks)

    return case


CASES = {
    "values": values,
    "flags": flags,
    "slow": slow,
    "weights": weights,
    "lost values": lost(lambda ranks: ranks.agree(1)),
    "lost rows": lost(lambda ranks: ranks.gather_rows(torch.ones(2))),
    "lost flags": lost(lambda ranks: ranks.agreement(("stop",), blocking=blocking).finish()),
    "one gpu": None,
}


def main():
    case, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu"
    launch = read_launch(os.environ)
    device = find_device(device_of(launch, name, num_gpus=num_gpus()))
    device.make_current()
    torch.set_default_device(device.torch_device)
    uuid = "GPU-1234" if case == "one gpu" else device.uuid()
    try:
        ranks = find_ranks(device.torch_device, uuid=uuid)
        found = CASES[case](ranks)
        ranks.end()
    except GaplessError as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
