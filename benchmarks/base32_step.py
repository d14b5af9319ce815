"""The trainer's own step on the batches of base32, for benchmarks that call it in a loop of their own."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.cases import TINY, base32
from gapless.nmt.data.sampler import PairBatches
from gapless.nmt.run.build import build_step, training_sampler


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.nmt.run.training_step import TranslationStep


# Sentences are padded to few shapes: that is what captures of base32 have.
_LAYOUT: dict[str, Any] = {"pack": False, "fixed_shapes": True, "compile": False}


class Base32:
    """A translation model and its step, with padded batches of 32 sentences.

    Args:
        device: where it trains.
        is_tiny: whether the model is that of a test.

    Attributes:
        step: the trainer's.
        examples: a batch of each shape, on the device.
    """

    def __init__(self, device: Device, *, is_tiny: bool) -> None:
        sizes: dict[str, Any] = {**TINY, "num_pairs": 2_000} if is_tiny else {}
        precision = "fp32" if is_tiny else "bf16"
        case = base32(workers=0, precision=precision, **sizes)
        config = replace(case.config, **_LAYOUT)
        self.step: TranslationStep = build_step(
            config, case.vocabs, compiles=False, device=device, total_updates=10**6
        )
        sampler = training_sampler(config, case.train, layout="fixed")
        pairs = PairBatches(case.train)
        self.examples = [
            _moved(pairs[micro], device.torch_device) for micro in sampler.one_of_each()
        ]

    def train(self, tokens: Any) -> torch.Tensor:
        """Train on a batch as written; return its loss."""
        self.step.on_host(tokens)
        out = self.step.forward(tokens)
        self.step.backward(out)
        return out.loss.detach()


def _moved(tokens: Any, device: torch.device) -> Any:
    parts = {one.name: getattr(tokens, one.name) for one in fields(tokens)}
    moved = {
        name: part.to(device) if isinstance(part, torch.Tensor) else part
        for name, part in parts.items()
    }
    return type(tokens)(**moved)
