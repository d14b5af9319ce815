"""A plain PyTorch loop, with and without `torch.compile(mode="reduce-overhead")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.parts import BatchDict, make_loader, make_model, make_optimizer
from gapless.device.numerics import autocast


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import Microbatch


class PlainPeer:
    """The loop of PyTorch's tutorials: running loss, pinned loader, non-blocking copies.

    Source: the loss is summed with `loss.item()` each step in
    docs.pytorch.org/tutorials/beginner/introyt/trainingyt.html; loader and copies as in the
    tuning guide and docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html; autocast as in
    docs.pytorch.org/docs/stable/notes/amp_examples.html.

    Args:
        case: to train on.
        device: where.
        read_every: steps between two reads of the loss.
    """

    def __init__(self, case: Case, device: Device, *, read_every: int = 1) -> None:
        self.batches: Sequence[Microbatch] = case.plain_batches()
        self.case = case
        self.device = device
        self.data = BatchDict(case.train)
        self.running_loss = 0.0
        self._read_every = read_every
        self._num_steps = 0

    def setup(self) -> None:
        """Build the model on the device."""
        self.model = make_model(self.case).to(self.device.torch_device)
        self.step_model: Any = self.model
        self.optimizer, self.scheduler = make_optimizer(self.model, self.case.config)

    def run(self, window: Window, *, first: int) -> None:
        """Train."""
        loader = make_loader(self.data, self.batches, case=self.case, window=window, first=first)
        for batch in loader:
            loss = self.train_step(batch)
            self._num_steps += 1
            if self._num_steps % self._read_every == 0:
                self.running_loss += loss.item()
            window.after_step(loss)
            if window.is_over:
                break

    def train_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Train on a batch and return its loss."""
        device, config = self.device.torch_device, self.case.config
        inputs = {name: item.to(device, non_blocking=True) for name, item in batch.items()}
        self.optimizer.zero_grad()
        with autocast(self.device, config.precision):
            loss: torch.Tensor = self.step_model(**inputs)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()


class CompiledPeer(PlainPeer):
    """The same loop with the whole model compiled, for each of a few padded shapes.

    CUDA graphs need static shapes, so batches are padded to few of them and `dynamic=False` keeps
    torch from making one general graph, for which no CUDA graph is kept per size. The limit on
    recompilations is raised to the number of shapes, or torch would fall back to eager. The loss
    is read every 50 steps, in favour of the peer.

    Source: docs.pytorch.org/docs/stable/generated/torch.compile.html,
    docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html.
    """

    def __init__(self, case: Case, device: Device, *, max_shapes: int) -> None:
        super().__init__(case, device, read_every=50)
        self._sampler = case.shaped_batches(max_shapes=max_shapes)
        self.batches = list(self._sampler)

    def setup(self) -> None:
        """Build and compile; each shape runs until it is warmed up, recorded and replayed."""
        super().setup()
        examples = self._sampler.one_of_each()
        torch._dynamo.config.recompile_limit = len(examples) + 1
        self.step_model = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        dataset = BatchDict(self.case.train)
        for _ in range(3):
            for micro in examples:
                self.train_step(dataset[micro]).item()

    def train_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Train on a batch and return its loss, valid until the next step."""
        torch.compiler.cudagraph_mark_step_begin()
        return super().train_step(batch)
