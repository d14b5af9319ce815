"""gapless on several ranks, as `torchrun -m gapless train` runs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from benchmarks.peers.gapless_peer import GaplessPeer
from gapless.ranks import SingleRank, find_ranks
from gapless.ranks.launch import read_launch


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.ranks import GradientSum, Ranks


class GaplessRank(GaplessPeer):
    """A rank of `TrainLoop`, or all of it where there is one.

    Args:
        case: to train on.
        device: of this rank.
        plan: name of the plan.
        layout: settings of layout and compiling.
        sums: whether gradients are summed at all.

    Attributes:
        joined: the ranks.
    """

    def __init__(
        self,
        case: Case,
        device: Device,
        *,
        plan: str,
        layout: dict[str, Any],
        sums: bool = True,
    ) -> None:
        place = read_launch(os.environ)
        joined = find_ranks(device.torch_device, uuid=device.uuid(), launch=place)
        # Between its turns a row does no update, for as long as the others need.
        self._pause = joined.pause("the turns of other rows")
        self._pause.__enter__()
        self.joined = joined
        ranks: Ranks = joined if sums else _SumsNothing(joined)
        super().__init__(case, device, plan=plan, layout=layout, ranks=ranks)

    def setup(self) -> None:
        """Build model and loop; capture every shape if the plan captures."""
        super().setup()
        weights = self.step.model.parameters()
        self.setup_facts["gradient_bytes"] = sum(
            one.numel() * one.element_size() for one in weights
        )

    def run(self, window: Window, *, first: int) -> None:
        """Train; count the steps that ran as written although the plan captures."""
        if self.joined.world > 1:
            window.meet = self._meet
        before = self._num_eager()
        super().run(window, first=first)
        window.facts["steps_as_written"] = self._num_eager() - before

    def _num_eager(self) -> int:
        report = self.loop.capture_report
        return 0 if report is None else report.num_eager

    def _meet(self) -> None:
        self.joined.agree(None)


class _SumsNothing:
    """Ranks that leave gradients as they are, and do all else as others do.

    Args:
        ranks: that do the rest.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def sum_gradients(self, params: Iterable[torch.nn.Parameter]) -> GradientSum:
        """Return what sums nothing; losses of all ranks are gathered as ever."""
        weights = list(params)
        # Connects the ranks, which a capture must not.
        self._ranks.sum_gradients(weights).close()
        return SingleRank().sum_gradients(weights)
