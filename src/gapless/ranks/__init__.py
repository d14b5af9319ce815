"""Several processes that train one model, one on each device: the ranks.

Everybody else asks the protocol in `protocol.py`. `membership.py` takes `single_rank.py` for a process that
trains alone, or `torch_ranks.py`, by what torchrun says (`launch.py`). A user's own loop has the ranks of
its own process group (`user_process_group.py`). Only this room names `torch.distributed`; with one rank
nothing that imports it is loaded.
"""

from gapless.ranks.collective_decision import CollectiveDecision, first_other, on_first_rank
from gapless.ranks.membership import (
    collectives_so_far,
    drop_before_groups_end,
    find_ranks,
    is_distributed,
    user_ranks,
)
from gapless.ranks.protocol import Agreement, GradientSum, Peers, Ranks
from gapless.ranks.single_rank import SingleRank


__all__ = [
    "Agreement",
    "CollectiveDecision",
    "GradientSum",
    "Peers",
    "Ranks",
    "SingleRank",
    "collectives_so_far",
    "drop_before_groups_end",
    "find_ranks",
    "first_other",
    "is_distributed",
    "on_first_rank",
    "user_ranks",
]
