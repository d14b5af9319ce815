"""Hugging Face Accelerate on several ranks: it wraps the model in DDP and deals the batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelerate.utils import DataLoaderConfiguration

from benchmarks.peers.accelerate_peer import AcceleratePeer
from benchmarks.peers.parts import make_loader
from benchmarks.ranks.share import DealtBatchDict, dealt_batches, interleaved, meeting
from gapless.ranks.launch import read_launch


if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device


class AccelerateDdpPeer(AcceleratePeer):
    """The same loop as on one GPU; Accelerate does the rest.

    Source: huggingface.co/docs/accelerate/concept_guides/performance (batches are dealt),
    huggingface.co/docs/accelerate/package_reference/utilities (`even_batches`).
    """

    def __init__(self, case: Case, device: Device) -> None:
        super().__init__(case, device)
        place = read_launch(os.environ)
        # As they come out of Accelerate, for those who count the tokens of this rank.
        self.batches = dealt_batches(case, place)
        self.data = DealtBatchDict(case.train, world=place.world)
        # Accelerate steps a schedule once for each rank, which is another schedule than that of
        # other rows; and it cannot make batches even whose sizes differ.
        self.accelerator_settings = {
            "dataloader_config": DataLoaderConfiguration(non_blocking=True, even_batches=False),
            "step_scheduler_with_optimizer": False,
        }
        self._all_batches = interleaved(case, place)
        self._world = place.world

    def setup(self) -> None:
        """Build and prepare; Accelerate joins the other ranks."""
        super().setup()
        self._meet = meeting()

    def make_loader(self, window: Window, *, first: int) -> DataLoader[Any]:
        """Return a loader of the batches of all ranks, which Accelerate deals."""
        return make_loader(
            self.data,
            self._all_batches,
            case=self.case,
            window=window,
            first=first,
            dealt_to=self._world,
        )

    def run(self, window: Window, *, first: int) -> None:
        """Train."""
        window.meet = self._meet
        super().run(window, first=first)
