"""How many batches an update has, and which numbers of ranks can share it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given, strategies as st

from gapless.errors import UserError
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.run.build import training_sampler
from gapless.nmt.run.new_run import choose_run, new_run
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.effective_settings import (
    accumulated,
    check_shapes,
    grown_update,
    resolve,
    worlds_of,
)
from gapless.ranks import OneRank


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_share_an_update_equally_or_not_at_all(update, world):
    """The error lists the numbers of ranks that could, and no other."""
    if world in worlds_of(update):
        assert accumulated(update, world) * world == update
        return
    with pytest.raises(UserError) as caught:
        accumulated(update, world)

    named = str(caught.value).rpartition("start ")[2].removesuffix(" of them")
    assert [int(name) for name in named.replace(" or ", ", ").split(", ")] == worlds_of(update)
    assert worlds_of(update) == [n for n in range(1, update + 1) if update % n == 0]


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

    class TwoRanks(OneRank):
        rank, world, is_first = 0, 2, True

    given = {"device": "cpu", "run_dir": str(tmp_path / "run"), "accumulate": accumulate}
    chosen = choose_run(given, world=2)
    run = new_run(chosen.config, chosen=chosen, ranks=TwoRanks())
    run.lock.release()

    assert len(run.choices) == len(lines)
    assert all(map(str.startswith, [choice.line for choice in run.choices], lines))
