"""What settings mean where they are left open, and how many batches an update has."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given, strategies as st

from gapless.errors import UserError
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.run.build import training_sampler
from gapless.nmt.run.new_run import choose_run, new_run
from gapless.nmt.settings import effective_settings
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.effective_settings import (
    FIXED_ON_RESUME,
    accumulated,
    changed_world,
    check_shapes,
    grown_update,
    resolve,
    resolve_resumed,
    settings_to_keep,
)
from gapless.ranks import SingleRank


TOKENS = {"batch_tokens": 512}
SENTENCES = {"batch_tokens": None, "batch_size": 8}


@pytest.fixture(autouse=True)
def has_triton(monkeypatch):
    """Attention has its kernels, as on a GPU."""
    monkeypatch.setattr(effective_settings, "HAS_TRITON", True)


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
        ({**TOKENS, "d_model": 96, "heads": 4}, "fixed", "padded"),
        ({**TOKENS, "d_model": 128, "heads": 4}, "packed", "padded"),
        ({**SENTENCES, "plan": "auto"}, "fixed", "padded"),
        ({**SENTENCES, "plan": "blocking"}, "padded", "padded"),
        ({**SENTENCES, **TOKENS, "plan": "captured"}, "fixed", "padded"),
        ({**SENTENCES, **TOKENS, "pack": True}, "packed", "packed"),
    ],
)
def test_the_layout_follows_settings_plan_and_device(settings, on_gpu, on_cpu):
    """Token budgets are packed on a GPU where its kernels are for the heads and drop nothing; plans that capture fix shapes."""
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


def test_nothing_is_packed_by_default_where_attention_has_no_kernels(monkeypatch):
    """Without them each sentence would be padded to the longest."""
    monkeypatch.setattr(effective_settings, "HAS_TRITON", False)

    assert resolve(make(**TOKENS), is_accelerator=True).layout == "fixed"
    assert resolve(make(**TOKENS, pack=True), is_accelerator=True).layout == "packed"


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
        *("seed", "weights", "max_length", "bpe_dropout", "batch_size", "batch_tokens"),
        *("tags", "tokenizer", "vocab_size", "vocab_model", "shared_vocab", "heads", "norm"),
        "activation",
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
        # Other weights of its texts would order the pairs otherwise, of which some are done.
        ({"data": "a\nb", "weights": "3,1"}, "`weights` is 3,1, but the run began with none"),
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
    assert resumed.world * resumed.accumulate == begun.world * begun.accumulate
    assert resumed.one_shape == begun.one_shape


def test_ranks_that_cannot_share_an_update_are_refused():
    """The error says which numbers of them could."""
    config = make(**TOKENS, accumulate=8)
    kept = settings_to_keep(config, resolve(config, is_accelerator=False))

    with pytest.raises(UserError, match=r"has 8 batches, which 3 ranks .* that divides 8"):
        resolve_resumed(config, kept, world=3)


def test_a_change_of_ranks_is_said():
    """And what stays the same in spite of it."""
    config = make(**TOKENS, accumulate=4)
    kept = settings_to_keep(config, resolve(config, is_accelerator=False, world=2))

    assert changed_world(kept, world=2) == []
    (line,) = changed_world(kept, world=1)
    assert line.startswith("the run had 2 ranks and goes on with 1: updates, their batches")


def test_only_training_decides_the_batches_of_an_update():
    """Elsewhere `auto` is refused in one line."""
    with pytest.raises(
        UserError, match="`accumulate` is auto, which only `gapless train` decides"
    ):
        resolve(make(**TOKENS, accumulate="auto"), is_accelerator=False)
    with pytest.raises(UserError, match="`accumulate` must be auto or a number of batches"):
        make(**TOKENS, accumulate="many")


# --- batches of an update ---


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_share_an_update_equally_or_not_at_all(update, world):
    """Of batches that they cannot share nobody drops some."""
    if update % world == 0:
        assert accumulated(update, world) * world == update
        return
    with pytest.raises(UserError, match=f"{world} ranks cannot share .* divides {update}$"):
        accumulated(update, world)


@pytest.mark.parametrize(
    ("world", "given", "tokens", "accumulate"),
    [
        (1, {}, 750, 1),
        (2, {}, 375, 1),
        (2, {"batch_tokens": 190}, 190, 2),
    ],
)
def test_the_embedded_corpus_holds_its_update(world, given, tokens, accumulate):
    """Which is that of its own settings."""
    chosen = choose_run({"accumulate": "auto", "device": "cpu", **given}, world=world)

    assert (chosen.config.batch_tokens, chosen.config.accumulate) == (tokens, accumulate)
    (choice,) = chosen.choices
    assert f"an update of {world} x {accumulate} batches has about " in choice.reason


def test_text_of_a_user_holds_its_update(tmp_path):
    """All ranks together take what one would take alone."""
    for split, count in (("train", 600), ("val", 3), ("test", 3)):
        lines = [f"a {n} b {n * n} c\tx {n} y {n * n} z\n" for n in range(count)]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    given = {"data": str(tmp_path), "columns": "en,de", "tgt": "de", "device": "cpu"}
    alone = choose_run(given).config
    four = choose_run({**given, "accumulate": "auto"}, world=4).config

    assert alone.accumulate == 1
    assert four.accumulate == 1
    assert 4 * four.batch_tokens == alone.batch_tokens


def effective(world, **settings):
    config = make_config({"batch_tokens": 64, **settings})
    return resolve(config, is_accelerator=True, world=world)


def test_a_larger_update_is_said():
    """With the way to keep it; not of one rank."""
    (choice,) = grown_update(effective(2, accumulate=3))
    assert choice.line.startswith(
        "update 2 x 3 batches: as there are 2 ranks, one would have 3; accumulate auto"
    )
    assert grown_update(effective(1)) == []


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, False),
        ({"one_shape": False}, True),
        ({"one_shape": False, "plan": "gapless", "pack": True}, False),
    ],
)
def test_several_gpus_capture_updates_of_one_shape_alone(options, is_refused):
    """Graphs of different shapes in one step are what NCCL forbids."""
    pairs = TokenPairs([[4] * n for n in range(1, 31)] * 4, [[5] * n for n in range(1, 31)] * 4)
    given = {"fixed_shapes": True, "pack": False, "plan": "captured", "batch_size": 4, **options}
    if options.get("pack"):
        given["fixed_shapes"] = False
    config = make_config(given)
    for world, refused in ((2, is_refused), (1, False)):
        asked = resolve(config, is_accelerator=True, world=world)
        sampler = training_sampler(
            config, pairs, layout=asked.layout, one_shape=asked.one_shape, world=world
        )
        with (
            pytest.raises(UserError, match="batches of several shapes")
            if refused
            else nullcontext()
        ):
            check_shapes(asked, sampler, is_accelerator=True)
        check_shapes(asked, sampler, is_accelerator=False)


@pytest.mark.parametrize(
    ("accumulate", "lines"),
    [(None, ["update 2 x 1 batches: as there are 2 ranks"]), ("auto", ["batch_tokens 375, acc"])],
)
def test_a_run_says_which_update_it_makes(accumulate, lines, tmp_path):
    """That of more ranks is larger, or was held."""

    class TwoRanks(SingleRank):
        rank, world, is_first = 0, 2, True

    given = {"device": "cpu", "run_dir": str(tmp_path / "run"), "accumulate": accumulate}
    chosen = choose_run(given, world=2)
    run = new_run(chosen, ranks=TwoRanks())
    run.lock.release()

    assert len(run.choices) == len(lines)
    assert all(map(str.startswith, [choice.line for choice in run.choices], lines))
