"""The updates of several ranks: every rank computes them, and all come to the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.fixed_layout import choose_fixed_layout
from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, PairBatches
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import PAD


lengths = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=150)
layouts = st.sampled_from(["padded", "fixed", "packed"])


def make_pairs(sizes):
    return TokenPairs([[4] * a for a, _ in sizes], [[5] * b for _, b in sizes])


def make_layout(pairs, name):
    both = pairs.src_lengths, pairs.tgt_lengths
    if name == "packed":
        return choose_packed_layout(*both, max_tokens=64, max_sentences=4)
    if name == "fixed":
        return choose_fixed_layout(*both, max_sentences=2, max_padding=0.0)
    return PaddedLayout(*both, max_sentences=3)


def ranks_of(world, size, pairs, layout, *, epoch=0, skip=0, max_updates=None, **options):
    """Return the updates of each rank as lists of batches, by rank."""
    found = []
    for rank in range(world):
        sampler = MicrobatchSampler(
            pairs, layout, accumulate=size // world, rank=rank, world=world, **options
        )
        sampler.set_epoch(epoch, skip=skip, max_updates=max_updates)
        updates, batches = [[]], list(sampler)
        for number, batch in enumerate(batches):
            assert sampler.update_of(number) == len(updates) - 1
            assert sampler.ends_update(number) == batch.ends_update
            updates[-1].append(batch)
            if batch.ends_update:
                updates.append([])
        assert updates.pop() == []
        found.append(updates)
    return found


def in_union(updates_of_ranks):
    """Return what all ranks together do in each update: pairs and shapes of its real batches."""
    return [
        [(m.pairs.tolist(), m.shape) for part in parts for m in part if len(m.pairs)]
        for parts in zip(*updates_of_ranks, strict=True)
    ]


@settings(deadline=None, max_examples=30)
@given(lengths, layouts, st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_world_makes_the_same_updates(sizes, layout, one_shape, shuffle, epoch):
    """Of 8 batches, on 1, 2, 4 or 8 ranks: the same batches in the same order of updates."""
    pairs = make_pairs(sizes)
    options = {"one_shape": one_shape, "shuffle": shuffle, "epoch": epoch, "seed": 5}
    by_world = {
        world: ranks_of(world, 8, pairs, make_layout(pairs, layout), **options)
        for world in (1, 2, 4, 8)
    }
    single = in_union(by_world[1])

    assert sorted(n for update in single for batch, _ in update for n in batch) == list(
        range(len(sizes))
    )
    for world, ranks in by_world.items():
        assert in_union(ranks) == single, world
        for parts in zip(*ranks, strict=True):
            assert len({len(part) for part in parts}) == 1
            assert 1 <= len(parts[0]) <= 8 // world
            tokens = sum(int(pairs.tgt_lengths[m.pairs].sum()) for part in parts for m in part)
            assert {m.update_tokens for part in parts for m in part} == {tokens}
            if one_shape:
                assert len({m.shape for part in parts for m in part}) == 1


@settings(deadline=None, max_examples=20)
@given(lengths, layouts, st.booleans(), st.integers(1, 4), st.integers(0, 9))
def test_an_epoch_goes_on_in_another_world(sizes, layout, one_shape, first_world, skip):
    """After so many updates on some ranks, the rest is the same on any others."""
    pairs = make_pairs(sizes)
    world = [1, 2, 3, 4, 6, 12][first_world]
    options = {"one_shape": one_shape, "epoch": 1}
    laid_out = make_layout(pairs, layout)
    whole = in_union(ranks_of(1, 12, pairs, laid_out, **options))
    rest = in_union(ranks_of(world, 12, pairs, laid_out, skip=skip, **options))
    two = in_union(ranks_of(world, 12, pairs, laid_out, skip=skip, max_updates=2, **options))

    assert rest == whole[skip:]
    assert two == whole[skip : skip + 2]


@settings(deadline=None, max_examples=30)
@given(lengths, layouts, st.integers(1, 4), st.integers(0, 3))
def test_one_rank_cuts_shuffled_batches_in_their_order(sizes, layout, accumulate, epoch):
    """The order of batches of a run on one GPU is a promise: it was so before there were ranks."""
    pairs = make_pairs(sizes)
    laid_out = make_layout(pairs, layout)
    random = np.random.default_rng((7, epoch))
    plans = laid_out.batches(random.permutation(len(pairs)))
    expected = [plans[number] for number in random.permutation(len(plans))]
    sampler = MicrobatchSampler(pairs, laid_out, accumulate=accumulate, seed=7)
    sampler.set_epoch(epoch)

    assert [(p.tolist(), shape) for p, shape in expected] == [
        (m.pairs.tolist(), m.shape) for m in sampler
    ]
    assert [n % accumulate == 0 or n == len(plans) for n in range(1, len(plans) + 1)] == [
        m.ends_update for m in sampler
    ]
    assert sampler.whole_epoch == len(plans)
    assert sampler.num_updates == -(-len(plans) // accumulate)


def test_batches_that_all_have_one_shape_keep_their_order():
    """So that a run on several GPUs has the updates of one that accumulates on one GPU."""
    pairs = make_pairs([(3, 4)] * 60)
    laid_out = make_layout(pairs, "packed")
    one_shape, any_shape = (
        ranks_of(1, 2, pairs, laid_out, one_shape=is_one) for is_one in (True, False)
    )

    assert in_union(one_shape) == in_union(any_shape)


def test_few_updates_of_one_shape_are_short():
    """What does not fill one moves on to the larger shape: only that of the largest may be short."""
    draw = np.random.default_rng(3)
    few_are_long = [*draw.integers(1, 30, 900), *draw.integers(300, 400, 40)]
    pairs = make_pairs([(n, n) for n in few_are_long])
    laid_out = choose_fixed_layout(pairs.src_lengths, pairs.tgt_lengths, max_sentences=4)
    assert len(laid_out.shapes) > 1

    updates = in_union(ranks_of(1, 4, pairs, laid_out, one_shape=True))

    short = [update[0][1] for update in updates if len(update) < 4]
    assert short in ([], [laid_out.shapes[-1]])


def test_updates_of_one_shape_are_mixed_over_the_epoch():
    """Shapes alternate: a model does not see all short sentences first."""
    draw = np.random.default_rng(0)
    pairs = make_pairs([(n, n) for n in draw.integers(1, 40, 400)])
    sampler = MicrobatchSampler(pairs, make_layout(pairs, "fixed"), accumulate=2, one_shape=True)
    shapes = [batch.shape.src_len for batch in sampler if batch.ends_update]

    changes = sum(one != other for one, other in pairwise(shapes))
    assert changes > 0.7 * len(shapes)


@pytest.mark.parametrize("layout", ["padded", "fixed", "packed"])
def test_a_batch_that_fills_up_an_update_has_nothing_to_predict(layout):
    """Its tensors have the size of the others', and hold no target token."""
    pairs = make_pairs([(3, 4)] * 7)
    laid_out = make_layout(pairs, layout)
    (parts,) = zip(*ranks_of(8, 8, pairs, laid_out, max_updates=1), strict=True)
    collated = [PairBatches(pairs)[micro] for (micro,) in parts]
    real, padding = collated[0], collated[-1]

    assert not len(parts[-1][0].pairs)
    assert int(padding.ntokens) == 0
    assert int(padding.norm) == int(real.norm) > 0
    if layout == "packed":
        assert padding.src.shape == real.src.shape
        assert padding.src_starts.shape == real.src_starts.shape
        assert (padding.trg_y == PAD).all()
    else:
        assert (padding.tgt[:, 1:] == PAD).all()
        assert (padding.src[:, 0] != PAD).all()
