"""Ranks that agree again and again, until one raises what nobody catches, or is killed: `HARM`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext

import torch

from gapless.ranks import find_ranks


def main():
    harm = sys.argv[1]
    ranks = find_ranks(torch.device("cpu"))
    agreement = ranks.agreement(("stop",), blocking=lambda reason: nullcontext(), every=1)
    for update in range(1, 1_000_000):
        ranks.note_updates(update)
        agreement.after_update(update)
        if update == 10 and ranks.rank == 1:
            if harm == "raises":
                raise RuntimeError("planted in one rank")
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
