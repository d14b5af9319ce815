"""Which settings a resumed run must keep, and what it takes over from the run so far."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError
from gapless.nmt.data.languages import is_same_language
from gapless.nmt.run.config_file import shown
from gapless.nmt.run.resolved import Resolved
from gapless.nmt.run.update_size import accumulated


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.resolved import LayoutName


# A resumed run leaves out as many updates as it has done, so the same settings must cut and order
# them. Others make ids of words, or change the model without changing the shape of a weight.
FIXED_ON_RESUME = (
    *("seed", "max_length", "batch_size", "batch_tokens"),
    *("tokenizer", "vocab_size", "vocab_model", "shared_vocab", "heads", "norm"),
)

# Names of the sides, which may be written otherwise.
_SIDES = ("src", "tgt")

# Say nothing of what is learnt.
_OF_ONE_PROCESS = ("run_dir", "allow_changed_data")

# Fixed as well, but None keeps what the run began with.
_LAYOUT_SETTINGS = ("pack", "fixed_shapes", "one_shape")

# What runs of one rank had before there were several.
_ALONE = {"world": 1, "one_shape": False}


def resolve_resumed(config: TrainConfig, begun: Mapping[str, Any], *, world: int = 1) -> Resolved:
    """Decide what the settings of a resumed run leave open: as the run began.

    The batches of an update stay the same; other ranks share them otherwise.

    Args:
        config: of the run.
        begun: what `settings_to_keep` returned for the run so far.
        world: number of ranks.

    Raises:
        UserError: a setting that must stay the same differs, or the ranks cannot share the batches
            of an update.
    """
    begun = {**_ALONE, **begun}
    _check_resumable(config, begun)
    accumulate = accumulated(begun["accumulate"] * begun["world"], world)
    if config.accumulate not in ("auto", begun["accumulate"], accumulate):
        raise _changed("accumulate", config.accumulate, begun)
    if begun["pack"]:
        layout: LayoutName = "packed"
    else:
        layout = "fixed" if begun["fixed_shapes"] else "padded"
    return Resolved(
        plan=config.resolved_plan(),
        layout=layout,
        compiles=begun["compile"] if config.compile is None else config.compile,
        accumulate=accumulate,
        world=world,
        one_shape=begun["one_shape"],
    )


def changed_world(begun: Mapping[str, Any], *, world: int) -> list[str]:
    """Return a line if a run goes on with another number of ranks than it had.

    Args:
        begun: what `settings_to_keep` returned for the run so far.
        world: number of ranks.
    """
    before = begun.get("world", 1)
    if before == world:
        return []
    return [
        f"the run had {before} rank{'s' if before > 1 else ''} and goes on with {world}: updates, "
        "their batches and the learning rate stay the same; dropout, and how sums are rounded, do not"
    ]


def changed_settings(config: TrainConfig, begun: TrainConfig) -> list[str]:
    """Return a few words for each setting that a resumed run changes: what it was, and what it is.

    Args:
        config: of the run from now on.
        begun: of the run before.
    """
    return [
        f"{item.name} {shown(before)} -> {shown(now)}"
        for item in fields(config)
        if item.name not in _OF_ONE_PROCESS
        and (now := getattr(config, item.name)) != (before := getattr(begun, item.name))
    ]


def settings_to_keep(config: TrainConfig, resolved: Resolved) -> dict[str, Any]:
    """Return what a run that is resumed later must have as it is now, and whether it compiles."""
    return {
        "pack": resolved.layout == "packed",
        "fixed_shapes": resolved.layout == "fixed",
        "compile": resolved.compiles,
        "accumulate": resolved.accumulate,
        "world": resolved.world,
        "one_shape": resolved.one_shape,
        **{name: getattr(config, name) for name in (*FIXED_ON_RESUME, *_SIDES)},
    }


def _check_resumable(config: TrainConfig, begun: Mapping[str, Any]) -> None:
    # Also between epochs: another seed would hold out other pairs, and schedules count updates.
    for name in (*_LAYOUT_SETTINGS, *FIXED_ON_RESUME):
        asked = getattr(config, name)
        is_left_open = asked is None and name in _LAYOUT_SETTINGS
        if not is_left_open and asked != begun.get(name, asked):
            raise _changed(name, asked, begun)
    for name in _SIDES:
        asked = getattr(config, name)
        before = begun.get(name, asked)
        if asked != before and not is_same_language(asked, before):
            raise _changed(name, asked, begun)


def _changed(name: str, asked: Any, begun: Mapping[str, Any]) -> UserError:
    return UserError(
        f"`{name}` is {shown(asked)}, but the run began with {shown(begun[name])}, "
        "which must stay the same; leave it out, or start a new run"
    )
