"""Several processes that train one model, one on each device: the ranks.

Everybody else asks the protocol in `protocol.py`. `choice.py` takes `one_rank.py` for a process that
trains alone, or `group.py`, by what torchrun says (`launch.py`). A user's own loop has the ranks of its
own process group (`of_user.py`). Only this room names `torch.distributed`; with one rank nothing that
imports it is loaded.
"""

from gapless.ranks.choice import find_ranks
from gapless.ranks.of_user import (
    collectives_so_far,
    drop_before_groups_end,
    is_distributed,
    ranks_of_user,
)
from gapless.ranks.one_rank import OneRank
from gapless.ranks.protocol import Agreement, GradientSum, Peers, Ranks


__all__ = [
    "Agreement",
    "GradientSum",
    "OneRank",
    "Peers",
    "Ranks",
    "collectives_so_far",
    "drop_before_groups_end",
    "find_ranks",
    "is_distributed",
    "ranks_of_user",
]
