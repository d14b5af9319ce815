"""The Transformer, its loss and schedule, and the search for translations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import gapless
from gapless.device.select import resolve_device
from gapless.nmt.batching import causal_mask
from gapless.nmt.decode import Decoder, DecodeSettings
from gapless.nmt.loss import LabelSmoothing
from gapless.nmt.model import ModelSizes, Transformer
from gapless.nmt.schedule import learning_rate, noam
from gapless.nmt.vocab import BOS, EOS, PAD
from gapless.pipeline.sync import HostSync


def make_model(vocab=12, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = ModelSizes(
        src_vocab=vocab,
        tgt_vocab=vocab,
        d_model=16,
        heads=2,
        ffn=32,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.1,
        **changes,
    )
    model = Transformer(sizes, max_positions=40).eval()
    for weight in model.parameters():
        weight.data.mul_(2.0)  # a sharper model than a fresh one, so that choices differ
    return model


def make_decoder(model):
    device = resolve_device("cpu")
    return Decoder(model, device=device, sync=HostSync(device))


def log_prob(model, source, target):
    """Score a whole target at once, without cache or beam."""
    src = torch.tensor([[*source, EOS]])
    ids = torch.tensor([[BOS, *target, EOS]])
    mask = (src != PAD).unsqueeze(1)
    logits = model.generator(model(src, ids[:, :-1], mask))
    return logits.log_softmax(-1)[0].gather(1, ids[0, 1:, None]).sum().item()


def test_the_published_tiny_model_has_its_number_of_parameters():
    """Sizes of the Multi30k recipe give 2,568,192 parameters."""
    model = Transformer(
        ModelSizes(
            src_vocab=9712,
            tgt_vocab=9712,
            d_model=128,
            heads=4,
            ffn=256,
            encoder_layers=4,
            decoder_layers=4,
            norm="post",
            share="all",
        )
    )

    assert sum(weight.numel() for weight in model.parameters()) == 2_568_192


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_full_target_mask_equals_the_causal_path(norm):
    """With padding at the end both masks give the same outputs where there is text."""
    model = make_model(norm=norm)
    src = torch.tensor([[4, 5, 6, EOS], [7, EOS, PAD, PAD]])
    trg = torch.tensor([[BOS, 4, 5], [BOS, 6, PAD]])
    batch = gapless.Batch.from_tokens(src, torch.cat((trg, trg[:, :1]), 1), torch.tensor(5))

    causal = model(src, trg, batch.src_mask)
    full = model(src, trg, batch.src_mask, causal_mask(trg))

    text = trg != PAD
    assert torch.allclose(causal[text], full[text], atol=1e-5)


def test_padding_does_not_change_a_sentence():
    """A sentence in a padded batch gets the output it gets alone."""
    model = make_model()
    alone = torch.tensor([[7, EOS]])
    padded = torch.tensor([[7, EOS, PAD, PAD]])
    trg = torch.tensor([[BOS, 6]])

    outputs = [model(src, trg, (src != PAD).unsqueeze(1)) for src in (alone, padded)]

    assert torch.allclose(*outputs, atol=1e-5)


def test_decoding_step_by_step_equals_decoding_at_once():
    """Cached keys and values give the logits of the whole sentence."""
    model = make_model()
    src = torch.tensor([[4, 5, 6, EOS]])
    mask = (src != PAD).unsqueeze(1)
    trg = torch.tensor([[BOS, 8, 9, 5]])
    whole = model.generator(model(src, trg, mask))
    cache = model.start_cache(model.encode(src, mask))

    steps = [model.decode_step(trg[:, at], cache, position=at, src_mask=mask) for at in range(4)]

    assert torch.allclose(whole[0], torch.cat(steps), atol=1e-4)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_wide_beam_finds_the_best_short_translation(early_stopping):
    """Over all translations of up to two tokens the search finds the most likely one."""
    for seed in range(6):
        model = make_model(vocab=7, seed=seed)
        source = [4, 5, 6]
        words = [1, 4, 5, 6]
        every = [list(ids) for n in range(3) for ids in itertools.product(words, repeat=n)]
        scores = {tuple(ids): log_prob(model, source, ids) / (len(ids) + 1) for ids in every}
        settings = DecodeSettings(beam=21, max_length=2, early_stopping=early_stopping)

        (found,) = make_decoder(model).translate([source], settings)

        best = max(scores, key=scores.get)
        assert list(best) == found[0].ids
        assert math.isclose(scores[best], found[0].score, abs_tol=1e-4)


def test_a_confident_model_is_not_cut_short_by_its_beam():
    """A wider beam never returns a translation that scores less than the greedy one."""
    for seed in range(8):
        model = make_model(seed=seed)
        sources = [[4, 5, 6, 7, 8], [9, 4]]
        greedy = make_decoder(model).translate(sources, DecodeSettings(beam=1, max_length=12))
        wide = make_decoder(model).translate(sources, DecodeSettings(beam=4, max_length=12))

        for one, many in zip(greedy, wide, strict=True):
            assert many[0].score >= one[0].score - 1e-4


def test_sentences_of_a_batch_do_not_touch_each_other():
    """Order is kept, and each sentence is translated as it is alone."""
    model = make_model()
    sources = [[4, 5, 6], [], [7] * 9, [8, 9]]
    decoder = make_decoder(model)
    together = decoder.translate(sources, DecodeSettings(beam=3, max_length=10, n_best=3))
    alone = [
        decoder.translate([source], DecodeSettings(beam=3, max_length=10, n_best=3))[0]
        for source in sources
    ]

    assert [[h.ids for h in found] for found in alone] == [
        [h.ids for h in found] for found in together
    ]
    for found in together:
        assert len(found) == 3
        assert sorted((h.score for h in found), reverse=True) == [h.score for h in found]


def test_the_schedule_rises_to_its_peak_and_falls():
    """The peak is reached at the end of the warm-up; Noam is the same but for the start."""
    peak = 5e-3
    rates = [
        learning_rate(n, peak=peak, warmup=2000, schedule="inverse-sqrt") for n in (1, 2000, 8000)
    ]
    factor = peak * math.sqrt(2000) * math.sqrt(128)

    assert math.isclose(peak, rates[1])
    assert math.isclose(peak / 2, rates[2])
    assert math.isclose(2.53, factor, abs_tol=0.01)
    assert math.isclose(peak / 2, noam(8000, d_model=128, warmup=2000, factor=factor))
    end = learning_rate(500, peak=1.0, warmup=10, schedule="cosine", total=500)
    assert math.isclose(0.0, end, abs_tol=1e-12)


def test_label_smoothing_is_the_formula():
    """(1 - s) * nll + s / V * sum of -log p, padding left out."""
    logits = torch.randn(5, 9)
    targets = torch.tensor([4, 5, PAD, 8, 1])
    log_p = logits.log_softmax(-1)
    rows = [n for n in range(5) if targets[n] != PAD]
    expected = sum(-0.9 * log_p[n, targets[n]] - 0.1 / 9 * log_p[n].sum() for n in rows)

    assert torch.allclose(expected, LabelSmoothing(0.1)(logits, targets), rtol=1e-5)


def test_loss_compute_trains_only_with_an_optimizer():
    """Without one it evaluates; the tensor carries no graph; calling it gives a number."""
    weight = torch.nn.Linear(3, 6)
    out, targets = torch.randn(2, 4, 3), torch.randint(1, 6, (2, 4))
    evaluate = gapless.LossCompute(weight, LabelSmoothing())
    train = gapless.LossCompute(
        weight, LabelSmoothing(), torch.optim.SGD(weight.parameters(), lr=0.1)
    )

    loss, evaluated = evaluate.compute_loss_tensor(out, targets, torch.tensor(8.0))
    before = weight.weight.clone()
    trained_loss, trained = train.compute_loss_tensor(out, targets, torch.tensor(8.0))

    assert (evaluated, trained) == (False, True)
    assert not loss.requires_grad
    assert torch.equal(loss, trained_loss)
    assert not torch.equal(before, weight.weight)
    assert evaluate(out, targets, 8.0) < float(loss)
