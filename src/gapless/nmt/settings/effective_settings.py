"""What a run does where its settings leave it open: of a new run, and of one that is resumed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from gapless.device.kernels import HAS_TRITON, HEAD_WIDTHS
from gapless.errors import UserError
from gapless.nmt.data.languages import is_same_language
from gapless.nmt.settings.config_file import shown
from gapless.nmt.settings.defaults import Choice


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.settings.config import TrainConfig
    from gapless.plans import Plan


LayoutName = Literal["padded", "fixed", "packed"]


@dataclass(frozen=True, kw_only=True)
class EffectiveSettings:
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


def resolve(config: TrainConfig, *, is_accelerator: bool, world: int = 1) -> EffectiveSettings:
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
    return EffectiveSettings(
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
    # Otherwise ranks replay graphs of different shapes, and wait in each update for the largest batch.
    return (world > 1 and has_few) if config.one_shape is None else config.one_shape


def _layout(config: TrainConfig, *, is_accelerator: bool, captures: bool) -> LayoutName:
    if config.pack and config.batch_tokens is None:
        raise UserError("`pack` needs a budget of tokens: add `batch_tokens`")
    if config.pack:
        return "packed"
    by_tokens = config.batch_tokens is not None and config.batch_size is None
    # Without its kernels packed attention pads each sentence to the longest, which is slow.
    has_kernels = HAS_TRITON and config.d_model // config.heads in HEAD_WIDTHS
    gains = is_accelerator and has_kernels and not config.attention_dropout
    if config.pack is None and by_tokens and gains and not config.fixed_shapes:
        return "packed"
    has_fixed_shapes = captures if config.fixed_shapes is None else config.fixed_shapes
    return "fixed" if has_fixed_shapes else "padded"


# --- of a run that is resumed ---


# A resumed run leaves out as many updates as it has done, so the same settings must cut and order
# them. Others make ids of words, or change the model without changing the shape of a weight.
FIXED_ON_RESUME = (
    *("seed", "weights", "max_length", "bpe_dropout", "batch_size", "batch_tokens"),
    *(
        "tags",
        "tokenizer",
        "vocab_size",
        "vocab_model",
        "shared_vocab",
        "heads",
        "norm",
        "activation",
    ),
)

# Names of the sides, which may be written otherwise.
_SIDES = ("src", "tgt")

# Say nothing of what is learnt.
_OF_ONE_PROCESS = ("run_dir", "allow_changed_data")

# Fixed as well, but None keeps what the run began with.
_LAYOUT_SETTINGS = ("pack", "fixed_shapes", "one_shape")


def resolve_resumed(
    config: TrainConfig, begun: Mapping[str, Any], *, world: int = 1
) -> EffectiveSettings:
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
    _check_resumable(config, begun)
    accumulate = accumulated(begun["accumulate"] * begun["world"], world)
    if config.accumulate not in ("auto", begun["accumulate"], accumulate):
        raise _changed("accumulate", config.accumulate, begun)
    if begun["pack"]:
        layout: LayoutName = "packed"
    else:
        layout = "fixed" if begun["fixed_shapes"] else "padded"
    return EffectiveSettings(
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
    before = begun["world"]
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


def settings_to_keep(config: TrainConfig, effective: EffectiveSettings) -> dict[str, Any]:
    """Return what a run that is resumed later must have as it is now, and whether it compiles."""
    return {
        "pack": effective.layout == "packed",
        "fixed_shapes": effective.layout == "fixed",
        "compile": effective.compiles,
        "accumulate": effective.accumulate,
        "world": effective.world,
        "one_shape": effective.one_shape,
        **{name: getattr(config, name) for name in (*FIXED_ON_RESUME, *_SIDES)},
    }


def _check_resumable(config: TrainConfig, begun: Mapping[str, Any]) -> None:
    # Checked between epochs too: another seed would hold out other pairs, so that test pairs are trained on.
    for name in (*_LAYOUT_SETTINGS, *FIXED_ON_RESUME):
        asked = getattr(config, name)
        is_left_open = asked is None and name in _LAYOUT_SETTINGS
        # Runs of earlier versions had no such setting.
        if not is_left_open and asked != begun.get(name, asked):
            raise _changed(name, asked, begun)
    for name in _SIDES:
        asked = getattr(config, name)
        before = begun[name]
        if asked != before and not is_same_language(asked, before):
            raise _changed(name, asked, begun)


def _changed(name: str, asked: Any, begun: Mapping[str, Any]) -> UserError:
    return UserError(
        f"`{name}` is {shown(asked)}, but the run began with {shown(begun[name])}, "
        "which must stay the same; leave it out, or start a new run"
    )


# --- batches of an update ---


def accumulated(update: int, world: int) -> int:
    """Return how many batches each rank has in an update.

    Args:
        update: batches of all ranks together.
        world: number of ranks.

    Raises:
        UserError: the ranks cannot share them equally.
    """
    if update % world:
        batches = "1 batch" if update == 1 else f"{update} batches"
        raise UserError(
            f"an update of this run has {batches}, which {world} ranks cannot share equally; "
            f"start a number of them that divides {update}"
        )
    return update // world


def grown_update(effective: EffectiveSettings) -> list[Choice]:
    """Return what to say of a new run whose updates are larger because there are several ranks."""
    if effective.world == 1:
        return []
    return [
        Choice(
            settings={"update": f"{effective.world} x {effective.accumulate} batches"},
            reason=f"as there are {effective.world} ranks, one would have {effective.accumulate}; "
            "accumulate auto keeps about that",
        )
    ]


def check_shapes(
    effective: EffectiveSettings, sampler: MicrobatchSampler, *, is_accelerator: bool
) -> None:
    """Check that no two ranks would replay graphs of different shapes.

    NCCL asks that all ranks use the same graph.

    Raises:
        UserError: they would.
    """
    captures = effective.plan.graphs != "never" and is_accelerator
    if effective.world > 1 and captures and sampler.mixes_shapes:
        raise UserError(
            "an update of this run has batches of several shapes, of which several GPUs cannot "
            'capture steps; add `plan="gapless"`, or begin a run with `one_shape=True`'
        )
