"""What ranks tell each other by `agree`, `share` and `gather_rows`: every rank checks all of it."""

from __future__ import annotations

import torch

from gapless.ranks import find_ranks


VALUES = [None, 3, "text", {"a": (1, 2.5)}, b"\0" * 3_000_000, ["é", float("inf")]]


def main():
    ranks = find_ranks(torch.device("cpu"))
    assert ranks.is_first == (ranks.rank == 0)
    for value in VALUES:
        assert ranks.agree((ranks.rank, value)) == [(r, value) for r in range(ranks.world)]
        assert ranks.share((ranks.rank, value)) == (0, value)
    for shape in ((), (0,), (5,), (2, 3), (1000, 7)):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool):
            gathered = ranks.gather_rows(torch.full(shape, ranks.rank).to(dtype))
            assert gathered.shape == (ranks.world, *shape)
            assert gathered.dtype == dtype
            for rank in range(ranks.world):
                assert torch.equal(gathered[rank], torch.full(shape, rank).to(dtype))
    turned = torch.arange(6.0).view(2, 3).t() + ranks.rank
    assert torch.equal(ranks.gather_rows(turned)[-1], turned - ranks.rank + ranks.world - 1)
    ranks.end()
    print("all told")


if __name__ == "__main__":
    main()
