"""A rank of rows of `benchmarks.ranks`: `rank_rows_program.py STEPS ROW...` prints losses in JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist


sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.peers.cases import TINY, base32
from benchmarks.peers.window import Window
from benchmarks.ranks.rows import make_rank

from gapless.device.find import find_device


def main():
    steps, *names = sys.argv[1:]
    sizes = {**TINY, "dropout": 0.0, "warmup": 1, "clip_norm": 1e-5}
    case = base32(workers=0, precision="fp32", num_pairs=200, **sizes)
    device = find_device("cpu")
    found, peers = {}, []
    for number, name in enumerate(names):
        # Ranks meet anew for each row; an attempt has a part of the store for itself.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        peer = make_rank(case, device, name=name)
        peers.append(peer)
        peer.setup()
        window = Window(device=device, warmup=1, steps=int(steps))
        peer.run(window, first=0)
        pairs = [micro.pairs.tolist() for micro in peer.batches]
        found[name] = {"loss": window.loss, "seconds": window.seconds, "pairs": pairs}
        joined = getattr(peer, "joined", None)
        if joined is not None:
            joined.end()
        elif dist.is_initialized():
            dist.destroy_process_group()
    print(json.dumps(found), flush=True)
    # A model under DDP that goes after its group may hang.
    os._exit(0)


if __name__ == "__main__":
    main()
