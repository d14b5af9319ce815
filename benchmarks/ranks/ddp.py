"""A plain PyTorch loop under DistributedDataParallel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.plain import PlainPeer
from benchmarks.ranks.share import DealtBatchDict, dealt_batches, meeting
from gapless.ranks.launch import read_launch


if TYPE_CHECKING:
    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device


class DdpPeer(PlainPeer):
    """The loop of PyTorch's tutorial of DDP, the loss read every 50 steps, in its favour.

    Source: docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html,
    docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html.
    """

    def __init__(self, case: Case, device: Device) -> None:
        super().__init__(case, device, read_every=50)
        place = read_launch(os.environ)
        self.batches = dealt_batches(case, place)
        self.data = DealtBatchDict(case.train, world=place.world)

    def setup(self) -> None:
        """Join the other ranks, and wrap the model."""
        dist.init_process_group("nccl" if self.device.is_accelerator else "gloo")
        self._meet = meeting()
        super().setup()
        of_gpu = [self.device.torch_device] if self.device.is_accelerator else None
        self.step_model = DistributedDataParallel(self.model, device_ids=of_gpu)

    def run(self, window: Window, *, first: int) -> None:
        """Train."""
        window.meet = self._meet
        super().run(window, first=first)
