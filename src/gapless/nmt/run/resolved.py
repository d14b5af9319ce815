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
    """

    plan: Plan
    layout: LayoutName
    compiles: bool


def resolve(config: TrainConfig, *, is_accelerator: bool) -> Resolved:
    """Decide what the settings of a new run leave open.

    Args:
        config: of the run.
        is_accelerator: whether the run's device is one.

    Raises:
        UserError: packing was asked for without a budget of tokens.
    """
    plan = config.resolved_plan()
    captures = plan.graphs != "never" and is_accelerator
    return Resolved(
        plan=plan,
        layout=_layout(config, is_accelerator=is_accelerator, captures=captures),
        compiles=captures if config.compile is None else config.compile,
    )


def _layout(config: TrainConfig, *, is_accelerator: bool, captures: bool) -> LayoutName:
    if config.pack and config.batch_tokens is None:
        raise UserError("`pack` needs a budget of tokens: add `batch_tokens`")
    if config.pack:
        return "packed"
    by_tokens = config.batch_tokens is not None and config.batch_size is None
    if config.pack is None and by_tokens and is_accelerator and not config.fixed_shapes:
        return "packed"
    has_fixed_shapes = captures if config.fixed_shapes is None else config.fixed_shapes
    return "fixed" if has_fixed_shapes else "padded"
