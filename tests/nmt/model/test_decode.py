"""The search for translations, against a small model whose every score is in a table."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.device.find import find_device
from gapless.nmt.data.vocab import BOS, EOS, PAD, UNK
from gapless.nmt.model import decode
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.model.incremental import Incremental
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.pipeline.host_waits import HostWaits


VOCAB = 6
WORDS = (UNK, 4, 5)


class TableModel:
    """Scores of the next token by source and target so far, drawn at random once each.

    Has the surface of a `Transformer` and its `Incremental` that the decoder uses; the "keys" of its cache are the
    target so far, so that a wrong past gives wrong scores.
    """

    def __init__(self, seed, *, sharpness=2.0, max_positions=50):
        self._seed = seed
        self._sharpness = sharpness
        self.max_positions = max_positions
        self.training = True
        self.num_steps = 0
        self.num_layers = self.heads = self.width = 1
        self.vocab = VOCAB
        self.row_bytes = 1
        self.dtype = torch.float32

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode

    def encode(self, src, src_mask):
        assert not self.training
        return (src * src_mask.squeeze(1)).float()

    def refresh(self):
        return False

    def source(self, memories, out):
        (memory,) = memories
        out.copy_(memory[:, None, None, None, :, None])

    def step(self, ids, position, cache):
        self.num_steps += 1
        beam = ids.shape[1]
        out = torch.empty(ids.numel(), VOCAB)
        at = int(position) * beam
        for row in range(beam):
            cache.own[:, 0, 0, 0, at + row, 0] = ids[:, row]
            cache.past[:, 0, row, at + row] = 0.0
        for row, (sentence, hypothesis) in enumerate(
            itertools.product(range(len(ids)), range(beam))
        ):
            is_past = cache.past[sentence, 0, hypothesis] == 0.0
            target = cache.own[sentence, 0, 0, 0, :, 0][is_past].int().tolist()
            source = cache.source[sentence, 0, 0, 0, :, 0].int().tolist()
            assert len(target) == int(position) + 1
            out[row] = torch.tensor(self.logits(source, target))
        return out

    def logits(self, source, target):
        text = [token for token in source if token != PAD]
        draw = random.Random(f"{self._seed} {text} {target}")
        return [draw.gauss(0.0, self._sharpness) for _ in range(VOCAB)]

    def log_probs(self, source, target):
        """Return the scores of all next tokens, those that never follow left out."""
        row = torch.tensor(self.logits([*source, EOS], [BOS, *target])).log_softmax(-1).tolist()
        return {token: row[token] for token in (*WORDS, EOS)}

    def score(self, source, target, penalty):
        """Return the score of a whole target as the search defines it."""
        ids = [*target, EOS]
        total = sum(self.log_probs(source, ids[:at])[token] for at, token in enumerate(ids))
        return total / len(ids) ** penalty


@pytest.fixture(scope="module", autouse=True)
def _models_make_their_own_steps():
    """A table is its own decoder of single steps."""

    def steps(model, *, dtype):
        return model if isinstance(model, TableModel) else Incremental(model, dtype=dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "Incremental", steps)
        yield


def make_decoder(model):
    device = find_device("cpu")
    return Decoder(model, device=device, host_waits=HostWaits(device))


def greedy(model, source, max_length):
    """Return the target that takes the likeliest token each time."""
    target = []
    while len(target) < max_length:
        scores = model.log_probs(source, target)
        token = max(scores, key=scores.get)
        if token == EOS:
            break
        target.append(token)
    return target


sources = st.lists(st.sampled_from([UNK, 4, 5]), max_size=4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), sources, st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.integers(0, 3))
def test_a_wide_beam_finds_the_best_of_all_translations(seed, source, penalty, max_length):
    """With room for every prefix the search returns what an exhaustive search returns."""
    model = TableModel(seed)
    every = [
        list(ids) for n in range(max_length + 1) for ids in itertools.product(WORDS, repeat=n)
    ]
    best = sorted((model.score(source, ids, penalty) for ids in every), reverse=True)[:5]
    wide = DecodeSettings(beam=40, length_penalty=penalty, max_length=max_length, n_best=5)

    (found,) = make_decoder(model).translate([source], wide)

    assert pytest.approx(best, abs=1e-4) == [one.score for one in found]
    own = [model.score(source, one.ids, penalty) for one in found]
    assert pytest.approx(best, abs=1e-4) == own
    assert len(best) == len({tuple(one.ids) for one in found})


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.lists(sources, max_size=5), st.integers(0, 20), st.booleans())
def test_a_beam_of_one_is_greedy(seed, texts, max_length, early_stopping):
    """A beam of one takes the likeliest token each time, until the end mark is the likeliest."""
    model = TableModel(seed)
    one = DecodeSettings(beam=1, max_length=max_length, early_stopping=early_stopping)

    found = make_decoder(model).translate(texts, one)

    expected = [greedy(model, source, max_length) for source in texts]
    assert expected == [best.ids for (best,) in found]


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10_000),
    st.lists(sources, min_size=1, max_size=7),
    st.integers(1, 5),
    st.booleans(),
    st.integers(1, 60),
)
def test_batches_do_not_change_translations(seed, texts, beam, early_stopping, batch_tokens):
    """Each source gets the translations that it gets alone, in the order of the sources."""
    model = TableModel(seed)
    search = DecodeSettings(
        beam=beam,
        n_best=beam,
        max_length=12,
        early_stopping=early_stopping,
        batch_tokens=batch_tokens,
    )
    decoder = make_decoder(model)

    together = decoder.translate(texts, search)

    for source, found in zip(texts, together, strict=True):
        (alone,) = decoder.translate([source], search)
        assert [h.ids for h in alone] == [h.ids for h in found]
        assert 1 <= len(found) <= beam
        scores = [h.score for h in found]
        assert sorted(scores, reverse=True) == scores
        for hypothesis in found:
            expected = model.score(source, hypothesis.ids, 1.0)
            assert math.isclose(expected, hypothesis.score, abs_tol=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), sources, st.integers(1, 6))
def test_the_best_translations_are_all_different(seed, source, beam):
    """The n best are n different targets, none longer than the limit."""
    search = DecodeSettings(beam=beam, n_best=beam, max_length=8)

    (found,) = make_decoder(TableModel(seed)).translate([source], search)

    assert len(found) == len({tuple(hypothesis.ids) for hypothesis in found})
    assert all(len(hypothesis.ids) <= 8 for hypothesis in found)


def test_more_translations_than_the_beam_holds_are_not_returned():
    """The search returns at most as many translations as the beam holds."""
    search = DecodeSettings(beam=2, n_best=5, max_length=6)

    (found,) = make_decoder(TableModel(3)).translate([[4, 5]], search)

    assert len(found) == 2


def test_no_sources_give_no_translations():
    """An empty list is no error, and nothing is computed."""
    model = TableModel(0)

    assert make_decoder(model).translate([], DecodeSettings()) == []
    assert model.num_steps == 0


@pytest.mark.parametrize("was_training", [True, False])
def test_the_models_mode_is_restored(was_training):
    """The model decodes in evaluation mode and gets its former mode back, also after an error."""
    model = TableModel(0)
    model.training = was_training
    make_decoder(model).translate([[4]], DecodeSettings(max_length=2))
    assert was_training == model.training

    model.step = None
    with pytest.raises(TypeError):
        make_decoder(model).translate([[4]], DecodeSettings(max_length=2))
    assert was_training == model.training


def test_finished_sentences_are_reported_and_waits_counted():
    """The callback counts all sentences, and each wait is counted as "decode"."""
    device = find_device("cpu")
    host_waits = HostWaits(device)
    done = []

    Decoder(TableModel(1), device=device, host_waits=host_waits).translate(
        [[4, 5]] * 7,
        DecodeSettings(beam=2, max_length=3, batch_tokens=12),
        on_done=done.append,
    )

    assert sum(done) == 7
    assert len(done) > 1
    assert list(host_waits.stats.by_reason) == ["decode"]


def test_a_translation_fits_the_positions_of_the_model():
    """A model with 5 positions writes at most 4 tokens, whatever limit is asked for."""
    for seed in range(5):
        model = TableModel(seed, max_positions=5)

        (found,) = make_decoder(model).translate([[4]], DecodeSettings(beam=3, n_best=3))

        assert all(len(hypothesis.ids) <= 4 for hypothesis in found)
        assert model.num_steps <= 5


def test_greedy_search_of_a_transformer_equals_decoding_by_hand():
    """With cache and batches the decoder writes what the whole model writes token by token."""
    torch.manual_seed(0)
    sizes = ModelSizes(
        src_vocab=12, tgt_vocab=12, d_model=16, heads=2, ffn=16, encoder_layers=1, decoder_layers=1
    )
    model = Transformer(sizes, max_positions=20).eval()
    for weight in model.parameters():
        weight.data.mul_(2.0)
    texts = [[4, 5, 6], [], [11, 7, 9, 9, 4], [8]]

    found = make_decoder(model).translate(
        texts, DecodeSettings(beam=1, max_length=9, early_stopping=True)
    )

    for source, (best,) in zip(texts, found, strict=True):
        src, target = torch.tensor([[*source, EOS]]), [BOS]
        while len(target) < 10:
            out = model(src, torch.tensor([target]), torch.ones_like(src).bool().unsqueeze(1))
            logits = model.generator(out[0, -1])
            logits[[PAD, BOS]] = -math.inf
            target.append(int(logits.argmax()))
            if target[-1] == EOS:
                target.pop()
                break
        assert target[1:] == best.ids


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), sources, st.integers(1, 5), st.integers(0, 6))
def test_a_translation_is_cut_where_the_model_would_have_gone_on(seed, source, beam, max_length):
    """It has as many tokens as are allowed, and its end is not the likeliest next token."""
    model = TableModel(seed)
    search = DecodeSettings(beam=beam, n_best=beam, max_length=max_length)

    (found,) = make_decoder(model).translate([source], search)

    for hypothesis in found:
        scores = model.log_probs(source, hypothesis.ids)
        goes_on = max(scores, key=scores.get) != EOS
        assert hypothesis.is_cut == (len(hypothesis.ids) == max_length and goes_on)


@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_has_no_more_sentences_than_asked_for(most):
    """`batch_sentences` limits a batch beside the budget of tokens."""
    sizes = []

    make_decoder(TableModel(1)).translate(
        [[4], [5, 4], [4, 4, 4], [5]] * 2,
        DecodeSettings(batch_sentences=most),
        on_done=sizes.append,
    )

    assert sum(sizes) == 8
    assert max(sizes) == most
