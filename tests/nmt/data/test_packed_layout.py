"""Sentences packed one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.batch import Batch
from gapless.nmt.data.packed_layout import choose_packed_layout
from gapless.nmt.data.padded_layout import PaddedShape
from gapless.nmt.data.sampler import Microbatch, MicrobatchSampler, PairBatches
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS, PAD
from gapless.nmt.model.attention import Packed, PackedRows, _attend_padded
from gapless.nmt.model.loss import LabelSmoothing, LossCompute
from gapless.nmt.model.transformer import ModelSizes, Transformer


lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=120)


def make_pairs(sizes, seed=0):
    draw = np.random.default_rng(seed)
    ids = [[draw.integers(4, 50, n - 1).tolist() for n in pair] for pair in sizes]
    return TokenPairs([src for src, _ in ids], [tgt for _, tgt in ids])


def packed(pairs, *, max_tokens, **options):
    layout = choose_packed_layout(pairs.src_lengths, pairs.tgt_lengths, max_tokens=max_tokens)
    return MicrobatchSampler(pairs, layout, **options), layout


@settings(deadline=None, max_examples=30)
@given(sizes=lengths, budget=st.integers(1, 2000), seed=st.integers(0, 5))
def test_an_epoch_has_every_pair_once_in_batches_of_one_shape(sizes, budget, seed):
    """Rows follow each other without a break; none is too long or without a source."""
    pairs = make_pairs(sizes)
    sampler, layout = packed(pairs, max_tokens=budget, seed=seed)

    assert sorted(np.concatenate([micro.pairs for micro in sampler])) == list(range(len(sizes)))
    assert {micro.shape for micro in sampler} == {layout.shape}
    for micro in sampler:
        batch, shape = PairBatches(pairs)[micro], micro.shape
        assert batch.src.shape == (shape.src_tokens,)
        assert batch.trg.shape == batch.trg_y.shape == (shape.tgt_tokens,)
        rows = [starts.diff() for starts in (batch.src_starts, batch.tgt_starts)]
        for starts, side in ((batch.src_starts, batch.src), (batch.tgt_starts, batch.trg)):
            assert len(starts) == shape.rows + 1
            assert (starts[0], starts[-1]) == (0, len(side))
            assert 0 <= starts.diff().min() <= starts.diff().max() <= shape.longest
        assert bool((rows[0] > 0)[rows[1] > 0].all())


def test_a_batch_holds_its_sentences_one_after_the_other():
    """A batch holds ids with marks, where each sentence begins, and padding at the end, in one tensor to move."""
    pairs = TokenPairs([[5, 6], [7]], [[8], [9, 10]])
    sampler, _ = packed(pairs, max_tokens=5, shuffle=False)
    batch = PairBatches(pairs)[
        Microbatch(
            pairs=np.array([0, 1]),
            update_tokens=9,
            ends_update=True,
            shape=next(iter(sampler)).shape,
        )
    ]

    assert batch.src[:6].tolist() == [5, 6, EOS, 7, EOS, PAD]
    assert batch.src_starts[:3].tolist() == [0, 3, 5]
    assert batch.trg[:6].tolist() == [BOS, 8, BOS, 9, 10, PAD]
    assert batch.trg_y[:6].tolist() == [8, EOS, 9, 10, EOS, PAD]
    assert batch.tgt_starts[:3].tolist() == [0, 2, 5]
    assert (batch.ntokens.item(), batch.norm.item()) == (5, 9)
    assert sum(isinstance(value, torch.Tensor) for value in vars(batch).values()) == 1


def test_little_is_padding_when_sources_and_targets_differ_in_length():
    """Source-heavy and target-heavy pairs are interleaved, so that both sides fill at one rate."""
    draw = np.random.default_rng(1)
    src = np.clip(draw.lognormal(3.2, 0.7, 20_000), 2, 200).astype(int)
    tgt = np.clip(src * draw.uniform(0.4, 1.4, 20_000), 2, 200).astype(int)
    layout = choose_packed_layout(src, tgt, max_tokens=8192)

    *batches, _ = layout.batches(draw.permutation(len(src)))
    real = sum(src[pairs].sum() + tgt[pairs].sum() for pairs, _ in batches)

    assert real / sum(shape.num_tokens for _, shape in batches) > 0.98


def test_batches_are_a_random_sample_of_lengths():
    """No batch holds only short sentences: every one is near the mean."""
    draw = np.random.default_rng(1)
    src = draw.integers(2, 60, 5000)
    layout = choose_packed_layout(src, src, max_tokens=4096)
    *batches, _ = layout.batches(draw.permutation(len(src)))

    assert all(abs(src[pairs].mean() - src.mean()) < 8 for pairs, _ in batches)


def test_a_batch_has_no_more_pairs_than_asked_for():
    """Both budgets hold, and the shape is as small as the smaller one allows."""
    draw = np.random.default_rng(1)
    src = draw.integers(2, 60, 1000)
    layout = choose_packed_layout(src, src, max_tokens=4096, max_sentences=16)
    batches = layout.batches(draw.permutation(len(src)))

    assert max(len(pairs) for pairs, _ in batches) == 16
    assert layout.shape.src_tokens < 700


def test_few_long_sentences_stand_among_the_short_ones():
    """A row may be as long as the longest sentence; short ones share its batch."""
    draw = np.random.default_rng(1)
    src = np.where(draw.random(5000) < 0.02, 600, draw.integers(2, 60, 5000))
    layout = choose_packed_layout(src, src, max_tokens=4096)
    batches = layout.batches(draw.permutation(len(src)))

    assert (layout.shape.src_tokens, layout.shape.longest) == (4096, 640)
    assert all(src[pairs].min() < 60 for pairs, _ in batches)
    assert sum(len(pairs) for pairs, _ in batches) == 5000


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_packed_batch_learns_what_a_padded_one_does(norm):
    """Loss and gradients agree, so no sentence sees another and padding teaches nothing, in rows as long as it likes."""
    draw = np.random.default_rng(2)
    pairs = make_pairs([tuple(draw.integers(2, 30, 2)) for _ in range(40)])
    sampler, _ = packed(pairs, max_tokens=200)
    micro = min(sampler, key=lambda micro: len(micro.pairs))
    torch.manual_seed(0)
    sizes = ModelSizes(
        src_vocab=50, tgt_vocab=50, d_model=32, heads=4, ffn=48,
        encoder_layers=2, decoder_layers=2, dropout=0.0, norm=norm,
    )  # fmt: skip
    model = Transformer(sizes, max_positions=30)
    compute = LossCompute(model.generator, LabelSmoothing(0.1))

    def learn(loss):
        model.zero_grad()
        loss.backward()
        return [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]

    batch = PairBatches(pairs)[micro]
    one = learn(compute.normalized(model.forward_packed(batch), batch.trg_y, batch.ntokens))
    src, tgt = pairs.take(micro.pairs)
    padded = PaddedShape(
        rows=len(micro.pairs), src_len=src.lengths.max(), tgt_len=tgt.lengths.max() - 1
    )
    tokens = padded.collate(src, tgt, update_tokens=1, ends_update=True)
    rows = Batch.from_tokens(tokens.src, tokens.tgt, tokens.ntokens)
    out = model(rows.src, rows.trg, rows.src_mask, rows.trg_mask)
    other = learn(compute.normalized(out, rows.trg_y, rows.ntokens))

    assert batch.ntokens == rows.ntokens
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_rows_without_tokens_spoil_nothing():
    """Empty rows stand at the end of every batch; nothing becomes NaN by them."""
    heads = [torch.randn(6, *size, 8, requires_grad=True) for size in ((2,), (2, 2))]
    starts = torch.tensor([0, 4, 6, 6, 6], dtype=torch.int32)
    rows = PackedRows.of(starts, num_tokens=6, longest=5)

    out = _attend_padded(*heads, Packed(rows, rows, is_causal=True), 0.0)
    out.sum().backward()

    assert all(bool(torch.isfinite(value).all()) for value in (out, *(h.grad for h in heads)))
    assert torch.allclose(out[4], heads[1][4, 1])


def test_one_example_stands_for_all_batches():
    """There is one example, and a second one if some batches do not end an update."""
    pairs = make_pairs([(5, 6)] * 50)

    assert len(packed(pairs, max_tokens=64)[0].one_of_each()) == 1
    ends = [
        micro.ends_update for micro in packed(pairs, max_tokens=64, accumulate=2)[0].one_of_each()
    ]
    assert ends == [True, False]


def test_the_header_says_how_much_is_padding():
    """A shape is no larger than the data: 20 pairs of 5 + 5 take 200 of 128 + 128 positions."""
    sampler, _ = packed(make_pairs([(5, 5)] * 20), max_tokens=300)

    assert sampler.describe() == "packed into 128 + 128 tokens, 21.9% padding"


def test_a_batch_keeps_its_budget():
    """The longer side has at most the tokens asked for, rounded down to a multiple of 64."""
    draw = np.random.default_rng(1)
    src, tgt = draw.integers(2, 58, 5000), draw.integers(2, 38, 5000)

    shape = choose_packed_layout(src, tgt, max_tokens=4100).shape

    assert shape.src_tokens == 4096
    assert shape.tgt_tokens < 3000
