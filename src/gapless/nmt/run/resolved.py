"""What a run does where its settings leave it open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gapless.errors import UserError


if TYPE_CHECKING:
    from gapless.nmt.run.config import TrainConfig
    from gapless.plans import Plan


LayoutName = Literal["padded", "fixed", "packed"]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a run does on its device.

    Attributes:
        plan: moves its work.
        layout: of its training batches.
        compiles: whether the model's layers are compiled.
        accumulate: batches of each rank in an update.
        world: number of ranks.
        one_shape: whether all batches of an update have one shape.
    """

    plan: Plan
    layout: LayoutName
    compiles: bool
    accumulate: int = 1
    world: int = 1
    one_shape: bool = False

    @property
    def update(self) -> int:
        """Batches of all ranks in an update."""
        return self.world * self.accumulate


def resolve(config: TrainConfig, *, is_accelerator: bool, world: int = 1) -> Resolved:
    """Decide what the settings of a new run leave open.

    Args:
        config: of the run.
        is_accelerator: whether the run's device is one.
        world: number of ranks.

    Raises:
        UserError: packing was asked for without a budget of tokens, or updates of one shape where
            each batch has a shape of its own.
    """
    plan = config.resolved_plan()
    captures = plan.graphs != "never" and is_accelerator
    layout = _layout(config, is_accelerator=is_accelerator, captures=captures)
    return Resolved(
        plan=plan,
        layout=layout,
        compiles=captures if config.compile is None else config.compile,
        accumulate=config.num_accumulated,
        world=world,
        one_shape=_one_shape(config, layout, world=world),
    )


def _one_shape(config: TrainConfig, layout: LayoutName, *, world: int) -> bool:
    has_few = layout != "padded"
    if config.one_shape and not has_few:
        raise UserError(
            "`one_shape` needs batches of few shapes, but each has its own: add `fixed_shapes=True`, "
            "or leave it out"
        )
    # All ranks replay the same graph, and none waits for a larger batch of another.
    return (world > 1 and has_few) if config.one_shape is None else config.one_shape


def _layout(config: TrainConfig, *, is_accelerator: bool, captures: bool) -> LayoutName:
    if config.pack and config.batch_tokens is None:
        raise UserError("`pack` needs a budget of tokens: add `batch_tokens`")
    if config.pack:
        return "packed"
    by_tokens = config.batch_tokens is not None and config.batch_size is None
    # Packed attention with dropout pads each sentence to the longest there may be, which is slow.
    gains = is_accelerator and not config.attention_dropout
    if config.pack is None and by_tokens and gains and not config.fixed_shapes:
        return "packed"
    has_fixed_shapes = captures if config.fixed_shapes is None else config.fixed_shapes
    return "fixed" if has_fixed_shapes else "padded"
