"""The batches of an epoch: budgets, updates, order and loaders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, make_loader
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS, PAD


lengths = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=60)


def make_pairs(sizes):
    return TokenPairs([[4] * a for a, _ in sizes], [[5] * b for _, b in sizes])


def padded_sampler(pairs, *, max_tokens=None, max_sentences=None, **options):
    layout = PaddedLayout(
        pairs.src_lengths, pairs.tgt_lengths, max_tokens=max_tokens, max_sentences=max_sentences
    )
    return MicrobatchSampler(pairs, layout, **options)


@settings(deadline=None)
@given(lengths, st.integers(1, 80), st.integers(1, 4), st.integers(0, 5))
def test_an_epoch_is_every_pair_once_within_the_budget(sizes, budget, accumulate, epoch):
    """No pair is lost or repeated; no batch exceeds the budget unless it is a single pair."""
    pairs = make_pairs(sizes)
    sampler = padded_sampler(pairs, max_tokens=budget, accumulate=accumulate)
    sampler.set_epoch(epoch)
    batches = list(sampler)

    drawn = sorted(int(n) for batch in batches for n in batch.pairs)
    assert list(range(len(sizes))) == drawn
    for batch in batches:
        longest = max(pairs.src_lengths[batch.pairs].max(), pairs.tgt_lengths[batch.pairs].max())
        assert len(batch.pairs) == 1 or len(batch.pairs) * longest <= budget
    assert [
        n % accumulate == accumulate - 1 or n == len(batches) - 1 for n in range(len(batches))
    ] == [batch.ends_update for batch in batches]


def test_an_epoch_that_is_trained_in_parts_is_cut_once(monkeypatch):
    """Each validation within an epoch ends a part of it; those of a large corpus take seconds to cut."""
    cut = []
    batches = PaddedLayout.batches
    monkeypatch.setattr(
        PaddedLayout, "batches", lambda *args, **more: cut.append(1) or batches(*args, **more)
    )
    sampler = padded_sampler(make_pairs([(3, 4)] * 12), max_sentences=2)
    whole = [batch.pairs.tolist() for batch in sampler]
    parts = []
    for part in ({"max_updates": 4}, {"skip": 4}):
        sampler.set_epoch(0, **part)
        parts += [batch.pairs.tolist() for batch in sampler]

    assert parts == whole
    assert len(cut) == 1
    sampler.set_epoch(1)
    assert len(cut) == 2
    assert [batch.pairs.tolist() for batch in sampler] != whole


@settings(deadline=None)
@given(lengths, st.integers(1, 4))
def test_an_update_counts_the_tokens_of_all_its_batches(sizes, accumulate):
    """Every batch has the number of target tokens of its update, which divides the loss."""
    pairs = make_pairs(sizes)
    batches = list(padded_sampler(pairs, max_sentences=3, accumulate=accumulate))
    for start in range(0, len(batches), accumulate):
        update = batches[start : start + accumulate]
        tokens = sum(int(pairs.tgt_lengths[batch.pairs].sum()) for batch in update)
        assert [tokens] * len(update) == [batch.update_tokens for batch in update]


def test_epochs_differ_and_repeat_exactly():
    """The order of an epoch depends on its number alone; a part of it can be skipped."""
    draw = np.random.default_rng(0)
    sampler = padded_sampler(make_pairs(draw.integers(1, 12, (200, 2)).tolist()), max_sentences=4)

    def order(epoch, skip=0):
        sampler.set_epoch(epoch, skip=skip)
        return [batch.pairs.tolist() for batch in sampler]

    assert order(3) == order(3)
    assert order(3) != order(4)
    assert order(3)[7:] == order(3, skip=7)


def test_batches_hold_pairs_of_similar_length():
    """Buckets keep padding low: batches are shuffled, not sentences."""
    draw = np.random.default_rng(1)
    pairs = make_pairs([(n, n) for n in draw.integers(1, 60, 1000)])
    batches = list(padded_sampler(pairs, max_sentences=20))

    padded = sum(pairs.src_lengths[batch.pairs].max() * len(batch.pairs) for batch in batches)
    assert padded < 1.1 * pairs.src_lengths.sum()


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_pad_at_the_end(workers):
    """Rows begin with their text and end in padding, with any number of workers."""
    pairs = TokenPairs([[7, 8], [9]], [[4], [5, 6, 7]])
    (batch,) = make_loader(
        pairs, padded_sampler(pairs, max_sentences=2, shuffle=False), workers=workers
    )

    assert batch.src.tolist() == [[9, EOS, PAD], [7, 8, EOS]]
    assert batch.tgt.tolist() == [[BOS, 5, 6, 7, EOS], [BOS, 4, EOS, PAD, PAD]]
    assert (int(batch.ntokens), int(batch.norm), batch.ends_update) == (6, 6, True)
    assert torch.int64 == batch.src.dtype


def test_a_padded_layout_needs_a_budget():
    """A layout with neither a budget of tokens nor of sentences is refused."""
    with pytest.raises(ValueError, match=r"max_tokens .* max_sentences"):
        padded_sampler(make_pairs([(1, 1)]))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_skipped_part_and_the_rest_are_the_whole_epoch(accumulate):
    """Batches keep their update, its tokens and its end, wherever an epoch is resumed."""
    sampler = padded_sampler(
        make_pairs([(n % 9, n % 7) for n in range(50)]), max_tokens=30, accumulate=accumulate
    )

    def epoch(**part):
        sampler.set_epoch(2, **part)
        assert len(sampler) == len(list(sampler))
        return [(m.pairs.tolist(), m.update_tokens, m.ends_update) for m in sampler]

    whole = epoch()
    for skip in range(sampler.num_updates + 1):
        first = skip * accumulate
        assert whole[first:] == epoch(skip=skip)
        assert sampler.num_skipped == min(first, len(whole))
        assert whole[first : first + 2 * accumulate] == epoch(skip=skip, max_updates=2)


def test_workers_do_not_change_batches_or_random_numbers():
    """The training process and a worker make the same epoch, bit for bit."""
    draw = np.random.default_rng(2)
    ids = [draw.integers(4, 99, draw.integers(0, 12)).tolist() for _ in range(80)]
    pairs = TokenPairs(ids, ids[::-1])

    def epochs(workers):
        sampler = padded_sampler(pairs, max_tokens=60, accumulate=2, seed=3)
        loader = make_loader(pairs, sampler, workers=workers)
        torch.manual_seed(0)
        found = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found += list(loader)
        return found, torch.rand(3).tolist()

    (direct, after), (through_worker, after_worker) = epochs(0), epochs(1)

    assert after == after_worker
    assert len(direct) == len(through_worker) > 10
    for one, other in zip(direct, through_worker, strict=True):
        for name in ("src", "tgt", "ntokens", "norm"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert one.ends_update == other.ends_update


@settings(deadline=None, max_examples=30)
@given(lengths, st.integers(1, 60))
def test_rows_are_their_text_and_then_padding(sizes, budget):
    """Every row has its pair's ids with marks, and only padding after them."""
    pairs = make_pairs(sizes)
    sampler = padded_sampler(pairs, max_tokens=budget)
    for micro, batch in zip(sampler, make_loader(pairs, sampler, workers=0), strict=True):
        for row, number in enumerate(micro.pairs):
            a, b = sizes[number]
            width, height = batch.src.shape[1], batch.tgt.shape[1]
            assert [4] * a + [EOS] + [PAD] * (width - a - 1) == batch.src[row].tolist()
            expected = [BOS] + [5] * b + [EOS] + [PAD] * (height - b - 2)
            assert expected == batch.tgt[row].tolist()
        assert int((batch.tgt[:, 1:] != PAD).sum()) == int(batch.ntokens)
        assert micro.update_tokens == int(batch.norm)
