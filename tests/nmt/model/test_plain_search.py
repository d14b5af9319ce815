"""The search beside a plain one: no cache, no batch, one sentence and one step at a time."""

from __future__ import annotations

import gc
import random
from collections import Counter

import pytest
import torch

from gapless.device.find import find_device
from gapless.errors import CaptureWarning
from gapless.nmt.data.vocab import BOS, EOS, PAD
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings, Sampling
from gapless.nmt.model.hypotheses import best_of_rows
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.pipeline.host_waits import HostWaits
from gapless.testing.simulated.simulated_device import SimulatedDevice


VOCAB = 23


def make_model(seed, *, norm="pre"):
    """Return a model with large random weights, whose translations end after a few tokens or never."""
    torch.manual_seed(seed)
    sizes = ModelSizes(
        src_vocab=VOCAB,
        tgt_vocab=VOCAB,
        d_model=16,
        heads=2,
        ffn=32,
        encoder_layers=1,
        decoder_layers=2,
        norm=norm,
        share="none",
        activation="relu" if norm == "pre" else "gelu",
        output_bias=norm == "post",
    )
    model = Transformer(sizes, max_positions=60).eval()
    for weight in model.parameters():
        weight.data.mul_(2.0)
    if norm == "post":
        model.generator.bias.data.normal_()
    model.generator.weight.data[EOS] *= 1.5 if norm == "pre" else 2.2
    return model


def make_texts(seed, count):
    """Return sources of 0 to 11 tokens."""
    draw = random.Random(seed)
    return [[draw.randrange(4, VOCAB) for _ in range(draw.randrange(12))] for _ in range(count)]


def make_decoder(model, device=None):
    device = device or find_device("cpu")
    return Decoder(model, device=device, host_waits=HostWaits(device))


def log_probs(model, source, target):
    """Return the scores of the token after a target, which the whole model computes anew."""
    src = torch.tensor([[*source, EOS]])
    with torch.no_grad():
        out = model(src, torch.tensor([[BOS, *target]]), torch.ones_like(src).bool().unsqueeze(1))
        scores = model.generator(out[0, -1]).log_softmax(-1).tolist()
    return {token: scores[token] for token in range(VOCAB) if token not in (PAD, BOS)}


def plain_search(model, source, settings):
    """Return the ended targets with their scores, best first."""
    beam, penalty = settings.beam, settings.length_penalty
    alive, ended, num_ended = [(0.0, [])], [], 0
    for length in range(1, settings.max_length + 2):
        must_end = length > settings.max_length
        steps = [
            (total + score, target, token)
            for total, target in alive
            for token, score in log_probs(model, source, target).items()
            if not must_end or token == EOS
        ]
        steps = sorted(steps, key=lambda step: -step[0])[: 2 * beam]
        new = [
            (total / length**penalty, target)
            for total, target, token in steps[:beam]
            if token == EOS
        ]
        num_ended += len(new)
        ended = sorted(ended + new, key=lambda found: -found[0])[:beam]
        alive = [(total, [*target, token]) for total, target, token in steps if token != EOS][
            :beam
        ]
        has_all = len(ended) == beam
        has_won = has_all and not must_end and ended[-1][0] >= alive[0][0] / length**penalty
        if num_ended >= beam if settings.early_stopping else has_won:
            break
    return ended


def check_same(model, texts, found, settings):
    for source, hypotheses in zip(texts, found, strict=True):
        expected = plain_search(model, source, settings)
        assert [target for _, target in expected] == [one.ids for one in hypotheses]
        scores = [score for score, _ in expected]
        assert pytest.approx(scores, rel=1e-4) == [one.score for one in hypotheses]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize(("penalty", "early_stopping"), [(1.0, False), (0.6, True), (0.0, False)])
def test_hypotheses_are_those_of_a_plain_search(norm, beam, penalty, early_stopping):
    """All hypotheses of all sentences, in float32, whatever leaves the batch and when."""
    model = make_model(beam, norm=norm)
    texts = make_texts(beam, 14)
    search = DecodeSettings(
        beam=beam,
        n_best=beam,
        length_penalty=penalty,
        early_stopping=early_stopping,
        max_length=17,
        batch_sentences=9,
    )

    found = make_decoder(model).translate(texts, search)

    lengths = {len(hypotheses[0].ids) for hypotheses in found}
    assert len(lengths) > 1, "sentences must end at different steps"
    check_same(model, texts, found, search)


def test_translations_longer_than_foreseen_are_whole():
    """Of a short source there may be a long translation: its memory grows."""
    model = make_model(3)
    model.generator.weight.data[EOS] = 0.0
    search = DecodeSettings(beam=2, max_length=40)

    found = make_decoder(model).translate([[4], [5, 6]], search)

    assert max(len(hypotheses[0].ids) for hypotheses in found) > 20
    for source, (best, *_) in zip([[4], [5, 6]], found, strict=True):
        assert plain_search(model, source, search)[0][1] == best.ids


def test_many_shapes_leave_nothing_behind():
    """On a CPU nearly every batch has a shape of its own: a long file must not fill the memory with them."""
    decoder = make_decoder(make_model(2))
    search = DecodeSettings(beam=2, max_length=30)
    decoder.translate([[5] * 20] * 30, search)
    before = _num_tensors()

    for count in range(1, 12):
        decoder.translate([[5] * (count % 7)] * count, search)

    assert _num_tensors() <= before


def _num_tensors():
    gc.collect()
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


@pytest.mark.parametrize("scheduler", ["lazy", "random"])
def test_replayed_steps_find_the_same(scheduler, monkeypatch):
    """On a device that works beside the host, with captured steps and late reads, without a race."""
    model = make_model(2)
    texts = make_texts(2, 5)
    search = DecodeSettings(beam=2, n_best=2, max_length=11)
    expected = make_decoder(model).translate(texts, search)

    captured = []
    capture = SimulatedDevice.capture
    monkeypatch.setattr(
        SimulatedDevice, "capture", lambda *a, **k: captured.append(a) or capture(*a, **k)
    )

    with SimulatedDevice(scheduler=scheduler) as device:
        decoder = make_decoder(model, device)
        rounds = [decoder.translate(texts, search) for _ in range(2)]

    assert captured
    assert device.report.races == []
    for found in rounds:
        assert [[h.ids for h in one] for one in expected] == [
            [h.ids for h in one] for one in found
        ]


def test_a_step_that_cannot_be_captured_runs_all_the_same(monkeypatch):
    """One warning says why, and the hypotheses are those of the search without graphs."""
    model, texts = make_model(2), make_texts(2, 3)
    search = DecodeSettings(beam=2, n_best=2, max_length=14)
    expected = make_decoder(model).translate(texts, search)

    def refuse(*_, **__):
        raise RuntimeError("no memory for a graph")

    monkeypatch.setattr(SimulatedDevice, "capture", refuse)
    with SimulatedDevice(scheduler="asap") as device:
        decoder = make_decoder(model, device)
        with pytest.warns(CaptureWarning, match="no memory for a graph") as caught:
            rounds = [decoder.translate(texts, search) for _ in range(2)]

    assert len(caught) == 1
    for found in rounds:
        assert [[h.ids for h in one] for one in expected] == [
            [h.ids for h in one] for one in found
        ]


def test_what_is_done_is_read_late(monkeypatch):
    """The host waits for an interval when the next one is queued: the device need not wait for it."""
    queued, waited = [], []
    record, wait = SimulatedDevice.record_event, HostWaits.wait_event
    monkeypatch.setattr(
        SimulatedDevice, "record_event", lambda *a: queued.append(a[1]) or record(*a)
    )
    monkeypatch.setattr(
        HostWaits, "wait_event", lambda *a, **k: waited.append((a[1], queued[-1])) or wait(*a, **k)
    )

    with SimulatedDevice(scheduler="lazy") as device:
        make_decoder(make_model(2), device).translate(
            [[4, 5], [6]], DecodeSettings(beam=2, max_length=14)
        )

    assert len(waited) > 1
    assert all(event is not newest for event, newest in waited[:-1])


def test_a_width_of_many_scores_gives_the_same_best():
    """The best of a row are found through groups as torch finds them, also in the last, shorter group."""
    scores = torch.randn(7, 64 * 80 + 13, generator=torch.Generator().manual_seed(0))
    scores[3, -1] = 9.0

    values, columns = best_of_rows(scores, 10)

    expected = scores.topk(10, dim=1)
    assert torch.equal(expected.values, values)
    assert torch.equal(expected.indices, columns)


# --- samples ---


def test_samples_do_not_depend_on_the_batch():
    """Seed and place of a sentence decide, not who is beside it."""
    model = make_model(1)
    texts = make_texts(1, 12)
    search = DecodeSettings(n_best=3, max_length=15, sampling=Sampling(seed=5))
    together = make_decoder(model).translate(texts, search)

    few = DecodeSettings(n_best=3, max_length=15, sampling=Sampling(seed=5), batch_sentences=2)

    assert [[h.ids for h in one] for one in together] == [
        [h.ids for h in one] for one in make_decoder(model).translate(texts, few)
    ]
    assert together == make_decoder(model).translate(texts, search)
    rest = make_decoder(model).translate(texts[5:], search, numbers=range(5, 12))
    assert [[h.ids for h in one] for one in together[5:]] == [[h.ids for h in one] for one in rest]
    other = DecodeSettings(n_best=3, max_length=15, sampling=Sampling(seed=6))
    assert together != make_decoder(model).translate(texts, other)


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(temperature=1e-3)]
)
def test_samples_of_the_likeliest_token_alone_are_greedy(sampling):
    """Each way to narrow the choice ends at the likeliest token."""
    model = make_model(4)
    texts = make_texts(4, 9)
    greedy = make_decoder(model).translate(
        texts, DecodeSettings(beam=1, max_length=15, early_stopping=True)
    )

    found = make_decoder(model).translate(texts, DecodeSettings(max_length=15, sampling=sampling))

    assert [[h.ids for h in one] for one in greedy] == [[h.ids for h in one] for one in found]


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(temperature=0.7), range(VOCAB)),
        (Sampling(temperature=1.5, top_k=4), range(4)),
        (Sampling(top_p=0.8), None),
    ],
)
def test_tokens_come_as_often_as_their_probabilities_say(sampling, allowed):
    """The first token of 2,000 samples, by temperature, the k likeliest and the likeliest up to p."""
    model = make_model(6)
    scores = log_probs(model, [4, 5], [])
    order = sorted(scores, key=scores.get, reverse=True)
    weights = torch.tensor([scores[token] for token in order]).div(sampling.temperature).softmax(0)
    if allowed is None:
        allowed = range(int((weights.cumsum(0) < sampling.top_p).sum()) + 1)
    expected = {
        order[at]: float(weights[at] / weights[list(allowed)[: len(order)]].sum())
        for at in allowed
        if at < len(order)
    }
    count = 2_000

    (found,) = make_decoder(model).translate(
        [[4, 5]], DecodeSettings(n_best=count, max_length=1, sampling=sampling)
    )

    drawn = Counter(one.ids[0] if one.ids else EOS for one in found)
    assert set(drawn) <= set(expected)
    for token, share in expected.items():
        assert abs(drawn[token] / count - share) < 4 * (share / count) ** 0.5 + 2e-3


def test_the_score_of_a_sample_is_the_models():
    """Whatever narrows the choice, the score is the log probability by the model over the length."""
    model = make_model(7)
    search = DecodeSettings(n_best=4, max_length=9, sampling=Sampling(temperature=2.0, top_k=6))

    (found,) = make_decoder(model).translate([[9, 4]], search)

    assert len(found) == 4
    for one in found:
        ids = [*one.ids, EOS]
        total = sum(log_probs(model, [9, 4], ids[:at])[token] for at, token in enumerate(ids))
        assert pytest.approx(total / len(ids), abs=1e-5) == one.score
