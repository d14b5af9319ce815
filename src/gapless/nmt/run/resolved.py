"""What a run does where its settings leave it open, and which settings a resumed run must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.run.config import TrainConfig
    from gapless.plans import Plan


LayoutName = Literal["padded", "fixed", "packed"]

# A resumed run leaves out as many batches as it has done, so the same settings must cut and order
# them. Others make ids of words, or change the model without changing the shape of a weight.
FIXED_ON_RESUME = (
    *("seed", "max_length", "batch_size", "batch_tokens", "accumulate"),
    *("tokenizer", "vocab_size", "vocab_model", "heads", "norm"),
)

# Fixed as well, but None keeps what the run began with.
_LAYOUT_SETTINGS = ("pack", "fixed_shapes")


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


def resolve_resumed(config: TrainConfig, begun: Mapping[str, Any]) -> Resolved:
    """Decide what the settings of a resumed run leave open: as the run began.

    Args:
        config: of the run.
        begun: what `settings_to_keep` returned for the run so far.

    Raises:
        UserError: a setting that must stay the same differs.
    """
    _check_resumable(config, begun)
    if begun["pack"]:
        layout: LayoutName = "packed"
    else:
        layout = "fixed" if begun["fixed_shapes"] else "padded"
    return Resolved(
        plan=config.resolved_plan(),
        layout=layout,
        compiles=begun["compile"] if config.compile is None else config.compile,
    )


def settings_to_keep(config: TrainConfig, resolved: Resolved) -> dict[str, Any]:
    """Return what a run that is resumed later must have as it is now, and whether it compiles."""
    return {
        "pack": resolved.layout == "packed",
        "fixed_shapes": resolved.layout == "fixed",
        "compile": resolved.compiles,
        **{name: getattr(config, name) for name in FIXED_ON_RESUME},
    }


def _check_resumable(config: TrainConfig, begun: Mapping[str, Any]) -> None:
    # Also between epochs: another seed would hold out other pairs, and schedules count updates.
    for name in (*_LAYOUT_SETTINGS, *FIXED_ON_RESUME):
        asked = getattr(config, name)
        is_left_open = asked is None and name in _LAYOUT_SETTINGS
        if not is_left_open and asked != begun.get(name, asked):
            raise UserError(
                f"`{name}` is {_shown(asked)}, but the run began with {_shown(begun[name])}, "
                "which must stay the same; leave it out, or start a new run"
            )


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower()
