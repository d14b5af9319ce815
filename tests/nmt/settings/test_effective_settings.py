"""What a run does where its settings leave it open, and what a resumed run must keep."""

from __future__ import annotations

import pytest

from gapless.errors import UserError
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.effective_settings import (
    FIXED_ON_RESUME,
    changed_world,
    resolve,
    resolve_resumed,
    settings_to_keep,
)


TOKENS = {"batch_tokens": 512}
SENTENCES = {"batch_tokens": None, "batch_size": 8}


def make(**settings):
    # Not the embedded corpus, whose settings have a budget of tokens.
    return make_config({"data": "somewhere", **settings})


@pytest.mark.parametrize(
    ("settings", "on_gpu", "on_cpu"),
    [
        ({**TOKENS, "plan": "auto"}, "packed", "padded"),
        ({**TOKENS, "plan": "gapless"}, "packed", "padded"),
        ({**TOKENS, "plan": "captured", "pack": False}, "fixed", "padded"),
        ({**TOKENS, "plan": "gapless", "pack": False}, "padded", "padded"),
        ({**TOKENS, "fixed_shapes": True}, "fixed", "fixed"),
        ({**TOKENS, "fixed_shapes": False}, "packed", "padded"),
        ({**TOKENS, "pack": False, "fixed_shapes": False}, "padded", "padded"),
        ({**TOKENS, "pack": True}, "packed", "packed"),
        ({**TOKENS, "plan": "auto", "attention_dropout": 0.1}, "fixed", "padded"),
        ({**TOKENS, "plan": "gapless", "attention_dropout": 0.1}, "padded", "padded"),
        ({**TOKENS, "pack": True, "attention_dropout": 0.1}, "packed", "packed"),
        ({**SENTENCES, "plan": "auto"}, "fixed", "padded"),
        ({**SENTENCES, "plan": "blocking"}, "padded", "padded"),
        ({**SENTENCES, **TOKENS, "plan": "captured"}, "fixed", "padded"),
        ({**SENTENCES, **TOKENS, "pack": True}, "packed", "packed"),
    ],
)
def test_the_layout_follows_settings_plan_and_device(settings, on_gpu, on_cpu):
    """Token budgets are packed on a GPU without dropout in attention; plans that capture fix shapes."""
    config = make(**settings)

    assert resolve(config, is_accelerator=True).layout == on_gpu
    assert resolve(config, is_accelerator=False).layout == on_cpu


@pytest.mark.parametrize(
    ("settings", "on_gpu"),
    [
        ({"plan": "captured"}, True),
        ({"plan": "auto"}, True),
        ({"plan": "gapless"}, False),
        ({"plan": "gapless", "compile": True}, True),
        ({"plan": "auto", "compile": False}, False),
    ],
)
def test_layers_are_compiled_where_the_plan_may_capture(settings, on_gpu):
    """On a GPU the plan decides unless the settings do; on a CPU only the settings."""
    config = make(**settings)

    assert resolve(config, is_accelerator=True).compiles is on_gpu
    assert resolve(config, is_accelerator=False).compiles is bool(config.compile)


def test_packing_needs_a_budget_of_tokens():
    """Packing is refused where batches are counted in sentences alone."""
    with pytest.raises(UserError, match=r"`pack`.*`batch_tokens`"):
        resolve(make(batch_size=8, pack=True), is_accelerator=True)


def test_what_a_run_keeps_has_these_keys():
    """The keys are the format of a file, which resumed runs of earlier versions have too."""
    config = make(**TOKENS)
    kept = settings_to_keep(config, resolve(config, is_accelerator=True))

    assert list(kept) == [
        *("pack", "fixed_shapes", "compile", "accumulate", "world", "one_shape"),
        *FIXED_ON_RESUME,
        *("src", "tgt"),
    ]
    assert [kept[name] for name in ("pack", "fixed_shapes", "compile")] == [True, False, True]
    assert set(FIXED_ON_RESUME) == {
        *("seed", "max_length", "batch_size", "batch_tokens"),
        *("tokenizer", "vocab_size", "vocab_model", "shared_vocab", "heads", "norm"),
    }


@pytest.mark.parametrize("is_accelerator", [True, False])
@pytest.mark.parametrize("settings", [{}, {"pack": True}, {"fixed_shapes": True}])
def test_a_resumed_run_keeps_its_layout_on_another_device(settings, is_accelerator):
    """Settings that are left open mean what they meant where the run began."""
    config = make(**TOKENS, **settings)
    begun = resolve(config, is_accelerator=is_accelerator)

    assert resolve_resumed(config, settings_to_keep(config, begun)) == begun


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pack": False}, "`pack` is false, but the run began with true"),
        ({"fixed_shapes": True, "pack": None}, "`fixed_shapes` is true, but the run began with false"),
        ({"shared_vocab": True}, "`shared_vocab` is true, but the run began with false"),
        ({"norm": "post"}, "`norm` is post, but the run began with pre"),
        ({"batch_size": 9}, "`batch_size` is 9, but the run began with none"),
        ({"accumulate": 2}, "`accumulate` is 2, but the run began with 1"),
        ({"one_shape": True}, "`one_shape` is true, but the run began with false"),
    ],
)  # fmt: skip
def test_a_resumed_run_cannot_change_what_is_fixed(flags, message):
    """The error names the setting, what was asked for and what the run began with."""
    config = make(**TOKENS, pack=True)
    kept = settings_to_keep(config, resolve(config, is_accelerator=True))

    with pytest.raises(UserError, match=message):
        resolve_resumed(make(**{**TOKENS, "pack": True, **flags}), kept)


@pytest.mark.parametrize(
    ("settings", "world", "one_shape"),
    [
        ({"pack": True}, 1, False),
        ({"pack": True}, 2, True),
        ({"fixed_shapes": True}, 2, True),
        ({"fixed_shapes": True, "one_shape": False}, 2, False),
        ({"fixed_shapes": True, "one_shape": True}, 1, True),
        # Each batch has a shape of its own.
        ({}, 2, False),
    ],
)
def test_updates_of_several_ranks_have_one_shape(settings, world, one_shape):
    """Where there are few shapes: all ranks replay the graph of one."""
    effective = resolve(make(**TOKENS, **settings), is_accelerator=False, world=world)

    assert effective.one_shape is one_shape


def test_updates_of_one_shape_need_few_shapes():
    """Otherwise nearly every batch of an update would be padding."""
    with pytest.raises(UserError, match=r"`one_shape` needs .* add `fixed_shapes=True`"):
        resolve(make(**TOKENS, one_shape=True), is_accelerator=False)


@pytest.mark.parametrize(
    ("before", "accumulate", "world", "expected"),
    [(1, 8, 2, 4), (2, 4, 1, 8), (2, 4, 8, 1), (4, 2, 4, 2), (3, 2, 2, 3)],
)
@pytest.mark.parametrize("asked", ["auto", "begun", "expected"])
def test_another_number_of_ranks_shares_the_same_updates(
    before, accumulate, world, expected, asked
):
    """Whether the setting is still that of the other ranks, is left to the run, or fits already."""
    config = make(**TOKENS, pack=True, accumulate=accumulate)
    begun = resolve(config, is_accelerator=False, world=before)
    values = {"auto": "auto", "begun": accumulate, "expected": expected}
    again = make(**TOKENS, pack=True, accumulate=values[asked])

    resumed = resolve_resumed(again, settings_to_keep(config, begun), world=world)

    assert (resumed.accumulate, resumed.world) == (expected, world)
    assert resumed.update == begun.update
    assert resumed.one_shape == begun.one_shape


def test_ranks_that_cannot_share_an_update_are_refused():
    """The error says how many could."""
    config = make(**TOKENS, accumulate=8)
    kept = settings_to_keep(config, resolve(config, is_accelerator=False))

    with pytest.raises(
        UserError, match=r"has 8 batches, which 3 ranks .* start 1, 2, 4 or 8 of them"
    ):
        resolve_resumed(config, kept, world=3)


def test_a_change_of_ranks_is_said():
    """And what stays the same in spite of it; a run of an earlier version had one rank."""
    config = make(**TOKENS, accumulate=4)
    kept = settings_to_keep(config, resolve(config, is_accelerator=False, world=2))

    assert changed_world(kept, world=2) == []
    assert changed_world({}, world=1) == []
    (line,) = changed_world(kept, world=1)
    assert line.startswith("the run had 2 ranks and goes on with 1: updates, their batches")


def test_a_run_of_an_earlier_version_had_one_rank():
    """Its updates have batches of any shape, in the order in which it began."""
    config = make(**TOKENS, pack=True, accumulate=2)
    kept = settings_to_keep(config, resolve(config, is_accelerator=False))
    for name in ("world", "one_shape"):
        del kept[name]

    resumed = resolve_resumed(config, kept, world=2)

    assert (resumed.accumulate, resumed.one_shape) == (1, False)


def test_only_training_decides_the_batches_of_an_update():
    """Elsewhere `auto` is refused in one line."""
    with pytest.raises(
        UserError, match="`accumulate` is auto, which only `gapless train` decides"
    ):
        resolve(make(**TOKENS, accumulate="auto"), is_accelerator=False)
    with pytest.raises(UserError, match="`accumulate` must be auto or a number of batches"):
        make(**TOKENS, accumulate="many")
