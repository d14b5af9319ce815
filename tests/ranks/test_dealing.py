"""What all ranks together train on does not depend on how many there are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler
from gapless.nmt.data.token_pairs import TokenPairs


# Batches in an update, on all ranks together.
UPDATE = 8
WORLDS = (1, 2, 4, 8)

texts = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=200)
epochs = st.integers(0, 5)
kinds = st.sampled_from(["padded", "packed"])


def laid_out(lengths, kind):
    """Return pairs of such lengths, and a layout of them."""
    pairs = TokenPairs([[4] * src for src, _ in lengths], [[5] * tgt for _, tgt in lengths])
    both = pairs.src_lengths, pairs.tgt_lengths
    if kind == "packed":
        return pairs, choose_packed_layout(*both, max_tokens=32, max_sentences=4)
    return pairs, PaddedLayout(*both, max_sentences=3)


def updates_of(pairs, layout, *, world, rank, epoch, skip=0):
    """Return the batches of one rank, update by update."""
    sampler = MicrobatchSampler(
        pairs, layout, accumulate=UPDATE // world, one_shape=True, seed=1, rank=rank, world=world
    )
    sampler.set_epoch(epoch, skip=skip)
    found = [[]]
    for batch in sampler:
        found[-1].append(batch)
        if batch.ends_update:
            found.append([])
    assert found.pop() == [], "the last batch ends an update"
    return found


def all_updates(pairs, layout, *, world, epoch, skip=0):
    """Return for each update what each rank does in it; all have equally many."""
    by_rank = [
        updates_of(pairs, layout, world=world, rank=rank, epoch=epoch, skip=skip)
        for rank in range(world)
    ]
    return list(zip(*by_rank, strict=True))


def pairs_of(update):
    """Return the pairs of the batches of an update that are not padding, in the order of ranks."""
    return [tuple(batch.pairs) for part in update for batch in part if len(batch.pairs)]


@settings(deadline=None, max_examples=25)
@given(texts, kinds, epochs, st.sampled_from(WORLDS))
def test_each_pair_is_dealt_once(lengths, kind, epoch, world):
    """In every epoch, to one rank, whatever does not fill an update."""
    pairs, layout = laid_out(lengths, kind)

    updates = all_updates(pairs, layout, world=world, epoch=epoch)

    found = Counter(pair for update in updates for batch in pairs_of(update) for pair in batch)
    assert found == Counter(range(len(lengths)))


@settings(deadline=None, max_examples=25)
@given(texts, kinds, epochs)
def test_worlds_make_the_same_updates(lengths, kind, epoch):
    """On 1, 2, 4 and 8 ranks, batch by batch."""
    pairs, layout = laid_out(lengths, kind)

    single, *others = (
        [pairs_of(update) for update in all_updates(pairs, layout, world=world, epoch=epoch)]
        for world in WORLDS
    )

    assert all(other == single for other in others)


@settings(deadline=None, max_examples=25)
@given(texts, kinds, epochs, st.sampled_from([2, 4, 8]))
def test_an_update_has_one_shape(lengths, kind, epoch, world):
    """Ranks have equally many batches in it, and know its tokens without asking."""
    pairs, layout = laid_out(lengths, kind)

    for update in all_updates(pairs, layout, world=world, epoch=epoch):
        batches = [batch for part in update for batch in part]
        [count] = {len(part) for part in update}
        assert 1 <= count <= UPDATE // world
        assert len({batch.shape for batch in batches}) == 1
        real = [pair for batch in pairs_of(update) for pair in batch]
        tokens = sum(int(pairs.tgt_lengths[pair]) for pair in real)
        assert {batch.update_tokens for batch in batches} == {tokens}
        assert real, "an update of padding alone teaches nothing"
        # Padding fills up the end of an update: a rank before has batches to do.
        is_real = [bool(len(batch.pairs)) for batch in batches]
        assert is_real == sorted(is_real, reverse=True)


@settings(deadline=None, max_examples=25)
@given(texts, kinds, epochs)
def test_padding_fills_one_update_a_shape(lengths, kind, epoch):
    """At most seven batches of padding in an epoch for each shape."""
    pairs, layout = laid_out(lengths, kind)

    padding = Counter(
        batch.shape
        for update in all_updates(pairs, layout, world=4, epoch=epoch)
        for part in update
        for batch in part
        if not len(batch.pairs)
    )

    assert all(count < UPDATE for count in padding.values())


@settings(deadline=None, max_examples=20)
@given(texts, kinds, epochs, st.integers(0, 6), st.sampled_from(WORLDS), st.sampled_from(WORLDS))
def test_a_resume_goes_on_with_the_next_update(lengths, kind, epoch, skip, world, later):
    """Also on another world: what was done on two ranks is not done again on four."""
    pairs, layout = laid_out(lengths, kind)
    whole = all_updates(pairs, layout, world=world, epoch=epoch)

    rest = all_updates(pairs, layout, world=later, epoch=epoch, skip=skip)

    assert [pairs_of(update) for update in rest] == [pairs_of(update) for update in whole[skip:]]


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_epochs_differ_and_come_again(kind):
    """Each has its own order, the same each time."""
    pairs, layout = laid_out([(1 + n % 9, 1 + n % 7) for n in range(300)], kind)

    first, again, next_one = (
        [pairs_of(update) for update in all_updates(pairs, layout, world=2, epoch=epoch)]
        for epoch in (3, 3, 4)
    )

    assert first == again
    assert first != next_one
