"""Translations are those of a plain search, however they are batched; scores are the model's own; samples follow it."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from translation_at_scale.corpora import sentence
from translation_at_scale.harness import WORDS, metrics
from translation_at_scale.plain_search import (
    BOS,
    EOS,
    PAD,
    beam_search,
    greedy,
    log_prob,
    next_log_probs,
)
from translation_at_scale.spelling import batch_budget, model_of, sampling


MOST = 14

# Scores are printed with four digits.
CLOSE = 2e-4


@pytest.fixture(scope="module")
def lines():
    draw = random.Random(4)
    return [" ".join(sentence(draw, 1, 8)) for _ in range(24)]


@pytest.fixture(scope="module")
def model(word_run):
    """The vocabularies of the run, and its model."""
    return model_of(word_run)


def hypotheses(model, line, *, beam, penalty):
    """Return what a plain beam search finds, as text and score."""
    vocabs, transformer = model
    (source,) = vocabs.src.encode([line])
    found = beam_search(transformer, source, beam=beam, penalty=penalty, most=MOST)
    return [(vocabs.tgt.decode(list(one.ids)), one.score(penalty)) for one in found]


def agree(found, expected):
    """Whether translations and scores are equal; those of one score may stand in any order."""
    close = all(
        score == pytest.approx(wanted, abs=CLOSE)
        for (_, score), (_, wanted) in zip(found, expected, strict=True)
    )
    wanted = dict(expected)
    return close and all(
        text in wanted and score == pytest.approx(wanted[text], abs=CLOSE) for text, score in found
    )


@pytest.mark.parametrize(("beam", "penalty"), [(4, 1.0), (5, 0.6), (3, 0.0)])
def test_the_beam_finds_what_a_plain_beam_search_finds(
    gapless, word_run, model, lines, beam, penalty
):
    """All hypotheses of all sentences, with their scores, are those of the search without batches and caches."""
    options = ["--beam", beam, "--n-best", beam, "--length-penalty", penalty, "--max-length", MOST]
    found = gapless.n_best(word_run, lines, *options)

    for line, ours in zip(lines, found, strict=True):
        plain = hypotheses(model, line, beam=beam, penalty=penalty)
        assert agree(ours, plain), (line, ours, plain)


def test_greedy_takes_the_most_probable_token(gapless, word_run, model, lines):
    """With a beam of 1 each token is the argmax of the model."""
    vocabs, transformer = model
    found = gapless.translate(word_run, lines, "--beam", 1, "--max-length", MOST)

    plain = [greedy(transformer, source, most=MOST) for source in vocabs.src.encode(lines)]
    assert found == [vocabs.tgt.decode(ids) for ids in plain]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_scores_are_log_probabilities_by_length(gapless, word_run, model, lines, penalty):
    """The score of each of the n best is its log-probability / (tokens and end mark) ** a, and they fall."""
    vocabs, transformer = model
    options = ["--beam", 4, "--n-best", 4, "--length-penalty", penalty, "--max-length", MOST]
    found = gapless.n_best(word_run, lines, *options)

    for line, ours in zip(lines, found, strict=True):
        (source,) = vocabs.src.encode([line])
        assert len({text for text, _ in ours}) == len(ours) == 4
        assert [score for _, score in ours] == sorted((score for _, score in ours), reverse=True)
        for text, score in ours:
            (ids,) = vocabs.tgt.encode([text])
            own = log_prob(transformer, source, ids) / (len(ids) + 1) ** penalty
            assert score == pytest.approx(own, abs=CLOSE)


BATCHES = {
    "one": ["--batch", 1],
    "seven": ["--batch", 7],
    "few tokens": batch_budget(64),
    "many tokens": batch_budget(100_000),
}


@pytest.mark.parametrize("form", BATCHES)
def test_batches_change_no_translation(gapless, word_run, lines, form):
    """Short and long lines, that end early and late, equal and empty ones: in any batches they give the same lines, in order."""
    draw = random.Random(8)
    mixed = [*lines, "", "the cat", " ".join(sentence(draw, 30, 30)), "the cat", "", *lines[:5]]
    options = ["--beam", 4, "--max-length", 40]
    alone = [
        gapless.translate(word_run, [line], *options)[0]
        for line in ("the cat", lines[0], mixed[26])
    ]
    found = gapless.translate(word_run, mixed, *options, *BATCHES[form])

    assert found == gapless.translate(word_run, mixed, *options)
    assert len(found) == len(mixed)
    assert [found[24], found[28]] == ["", ""]
    assert [found[25], found[0], found[26]] == alone
    assert found[25] == found[27]
    assert found[29:] == found[:5]


def test_a_validation_scores_what_evaluate_scores(gapless, splits):
    """The BLEU of the last validation is that of `gapless evaluate --split val` with the same weights."""
    gapless.train(splits, "run", *WORDS, "--max-steps", 80, "--val-interval", 100)
    (last,) = [row for row in metrics(gapless.folder / "run", kind="epoch") if "val_bleu" in row]
    scores = [
        json.loads(gapless("evaluate", "run", "--split", "val", "--beam", beam, "--json").out)
        for beam in (1, 5)
    ]

    assert last["val_bleu"] > 0
    assert last["val_bleu"] in [pytest.approx(score["bleu"], abs=1e-6) for score in scores]


# ------------------------------------------------------------------------------- samples


def samples(gapless, run, line, count, **options):
    """Return so many samples of one line."""
    return gapless.translate(run, [line] * count, "--max-length", MOST, *sampling(**options))


def test_a_seed_repeats_its_samples(gapless, word_run):
    """The same seed gives the same lines, another seed others; equal lines get samples of their own."""
    line = "the old woman sees"
    first = samples(gapless, word_run, line, 50, seed=3)

    assert samples(gapless, word_run, line, 50, seed=3) == first
    assert samples(gapless, word_run, line, 50, seed=4) != first
    assert len(set(first)) > 10


@pytest.mark.parametrize("temperature", [None, 0.5, 2.0])
def test_samples_follow_the_softmax(gapless, word_run, model, temperature):
    """Of 3,000 samples the first words are as frequent as the softmax of the logits / temperature says."""
    vocabs, transformer = model
    line, count = "the old woman sees", 3_000
    found = samples(gapless, word_run, line, count, seed=5, temperature=temperature)

    (source,) = vocabs.src.encode([line])
    chances = (next_log_probs(transformer, source, [[]])[0] / (temperature or 1)).softmax(-1)
    assert 0.05 < float(chances.max()) < 0.999  # something to tell apart
    seen = Counter(text.split()[0] if text else "" for text in found)
    for token, chance in enumerate(chances.tolist()):
        if token in (PAD, BOS):
            continue
        word = vocabs.tgt.decode([token]) if token != EOS else ""
        error = 5 * (count * chance * (1 - chance)) ** 0.5 + 1
        assert seen[word] == pytest.approx(count * chance, abs=error), word


def test_samples_of_the_best_k_hold_no_other(gapless, word_run, model):
    """With `top k` 3 the first word is one of the three most probable, each of which is seen."""
    vocabs, transformer = model
    line = "the old woman sees"
    found = samples(gapless, word_run, line, 1_000, seed=6, temperature=2, top_k=3)

    (source,) = vocabs.src.encode([line])
    best = next_log_probs(transformer, source, [[]])[0].topk(3).indices.tolist()
    assert {text.split()[0] if text else "" for text in found} == {
        vocabs.tgt.decode([token]) if token != EOS else "" for token in best
    }


def test_samples_have_scores_of_their_own(gapless, word_run, model):
    """Several samples of each line come with the model's log-probability / length ** a."""
    vocabs, transformer = model
    lines = ["the old woman sees", "a red book"]
    options = ["--n-best", 4, "--length-penalty", 1, "--max-length", MOST]
    found = gapless.n_best(word_run, lines, *options, *sampling(seed=2))

    for line, ours in zip(lines, found, strict=True):
        (source,) = vocabs.src.encode([line])
        assert len(ours) == 4
        for text, score in ours:
            (ids,) = vocabs.tgt.encode([text])
            own = log_prob(transformer, source, ids) / (len(ids) + 1)
            assert score == pytest.approx(own, abs=CLOSE)
