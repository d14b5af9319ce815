"""Several processes that train one model, one on each device: the ranks.

Everybody else asks the protocol in `protocol.py`; `one_rank.py` implements it for a process that
trains alone. `launch.py` chooses. Only this room names `torch.distributed`; with one rank nothing
that does is imported.
"""

from gapless.ranks.launch import find_ranks
from gapless.ranks.one_rank import OneRank
from gapless.ranks.protocol import Agreement, GradientSum, Ranks


__all__ = ["Agreement", "GradientSum", "OneRank", "Ranks", "find_ranks"]
