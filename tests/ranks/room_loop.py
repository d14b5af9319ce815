"""A loop that uses the protocol of ranks and nothing else: `room_loop.py SETTINGS`, in JSON.

Each rank writes one line of JSON for each update after which flags were agreed on, and one with its
weights at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

from gapless.errors import EXIT_PEER_LOST, PeerLostError
from gapless.ranks import find_ranks


FLAGS = ("stop", "nonfinite", "other")


@contextlib.contextmanager
def blocking(reason):
    """Count no waits."""
    yield


class Harm:
    """What happens to one rank in one update."""

    def __init__(self, kind, seconds, ranks):
        self._kind, self._seconds, self._ranks = kind, seconds, ranks

    def happen(self):
        Path("harmed").touch()
        getattr(self, self._kind)()

    def ends(self):
        os._exit(7)

    def raises(self):
        raise RuntimeError("planted in one rank")

    def leaves(self):
        sys.exit(0)

    def waits(self):
        time.sleep(self._seconds)

    def pauses(self):
        with self._ranks.pause("a long save"):
            time.sleep(self._seconds)

    def pauses_with_the_lock(self):
        """As a library does that computes for long and lets no other thread of Python run."""
        with self._ranks.pause("data"):
            ctypes.PyDLL(None).sleep(int(self._seconds))


def main():
    settings = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    time.sleep(settings.get("late", {}).get(str(rank), 0))
    ranks = find_ranks(torch.device("cpu"), uuid=settings.get("uuid"))
    harm = settings.get("harm", {})
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = ranks.sum_gradients(list(model.parameters()))
    agreement = ranks.agreement(FLAGS, blocking=blocking, every=settings.get("every", 10))
    raised = settings.get("raised", {}).get(str(rank), {})
    draw = torch.Generator().manual_seed(rank)
    done = settings.get("updates", 40)
    for update in range(1, done + 1):
        time.sleep(settings.get("seconds", 0.005))
        if harm.get("rank") == rank and harm["at"] == update:
            Harm(harm["kind"], harm.get("seconds", 1000.0), ranks).happen()
        optimizer.zero_grad()
        loss = model(torch.randn(3, 8, generator=draw)).square().sum()
        loss.backward()
        total.finish()
        optimizer.step()
        for flag, value in raised.get(str(update), {}).items():
            agreement.ask(flag, value)
        ranks.note_updates(update)
        known = dict(agreement.after_update(update))
        if known:
            print(json.dumps([update, known]), flush=True)
        if "stop" in known:
            break
    print(json.dumps(["last", dict(agreement.finish())]), flush=True)
    time.sleep(settings.get("lingers", {}).get(str(rank), 0))
    bits = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in model.parameters()))
    print(json.dumps(["weights", bits.hexdigest()]), flush=True)
    total.close()
    ranks.end()


if __name__ == "__main__":
    try:
        main()
    except PeerLostError as error:
        # As the command line does.
        print(f"gapless: error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_PEER_LOST)
