"""BPE-dropout, tags, ensembles, COMET and trackers."""

from __future__ import annotations

import importlib.util
import json
import math

import pytest
from sentencepiece import SentencePieceProcessor

from translation_at_scale.corpora import pairs, write_folder, write_tsv
from translation_at_scale.harness import SUBWORDS, TINY, WORDS, losses, metrics, weights
from translation_at_scale.plain_search import next_log_probs
from translation_at_scale.spelling import (
    COMET_EXTRA,
    COMET_LIBRARY,
    TRACKER,
    TRACKER_EXTRA,
    bpe_dropout,
    comet,
    ensemble,
    model_of,
    tags,
    tracked,
)


def tokens_of_epochs(run):
    """Return the target tokens of each epoch, marks included."""
    counts = iter([row["tokens"] for row in metrics(run, kind="train")])
    return [
        sum(next(counts) for _ in range(row["num_batches"])) for row in metrics(run, kind="epoch")
    ]


@pytest.mark.slow  # Trains several times.
def test_bpe_dropout_cuts_words_otherwise_in_each_epoch(gapless, table, tmp_path):
    """Training text has more tokens, others in each epoch; one seed gives the same bits; 0 changes nothing."""
    options = [*SUBWORDS, "--epochs", 3, "--val-interval", 1, "--max-length", 60]
    for name, share in {"none": None, "zero": 0, "some": 0.3, "again": 0.3}.items():
        gapless.train(table, name, *options, *([] if share is None else bpe_dropout(share)))
    plain, some = tokens_of_epochs(tmp_path / "none"), tokens_of_epochs(tmp_path / "some")

    assert len(plain) == 3
    assert len(set(plain)) == 1
    assert len(set(some)) == 3
    assert min(some) > 1.05 * plain[0]
    assert losses(tmp_path / "some") == losses(tmp_path / "again")
    assert weights(tmp_path / "some") == weights(tmp_path / "again")
    assert losses(tmp_path / "zero") == losses(tmp_path / "none")


@pytest.mark.slow  # Trains several times.
def test_bpe_dropout_is_of_training_alone(gapless, table, tmp_path):
    """A resumed run goes on as if it had not ended; the same line is always translated alike."""
    options = [*SUBWORDS, "--val-interval", 1, "--max-length", 60, *bpe_dropout(0.3)]
    options += ["--schedule", "constant", "--warmup", 5, "--save-every", 5]
    gapless.train(table, "whole", *options, "--max-steps", 40)
    gapless.train(table, "parts", *options, "--max-steps", 15)
    gapless("train", "--resume", "parts", "--max-steps", 40)
    found = gapless.translate("whole", ["the old woman sees"] * 8)

    assert losses(tmp_path / "parts")[0] == losses(tmp_path / "whole")[0]
    assert len(set(found)) == 1


@pytest.mark.slow  # Trains until it has learned.
def test_a_tag_is_one_token(gapless, tmp_path):
    """Tags such as of a domain stay whole; the model learns what one means."""
    rows = pairs(300, most=4)
    shout = [(f"<loud> {source}", " ".join([target] * 2)) for source, target in rows]
    quiet = [(f"<low> {source}", target) for source, target in rows]
    mixed = [row for both in zip(shout, quiet, strict=True) for row in both]
    data = write_folder(tmp_path / "data", train=mixed[:560], val=mixed[560:580], test=mixed[580:])
    options = ["--vocab-size", 330, "--max-steps", 400, "--val-interval", 100]
    gapless.train(data, "run", *options, *tags("<loud>", "<low>"))
    subwords = SentencePieceProcessor(model_file=str(tmp_path / "run" / "vocab.spm"))
    loud, low = gapless.translate("run", ["<loud> the red cat", "<low> the red cat"])

    for tag in ("<loud>", "<low>"):
        assert subwords.piece_to_id(tag) not in (0, subwords.unk_id())
        assert tag in subwords.encode_as_pieces(f"{tag} the red cat")
    assert len(loud.split()) > len(low.split())


# ------------------------------------------------------------------------------ ensembles


@pytest.fixture(scope="module")
def two_runs(commands_of_session, word_run):
    """Two runs with one vocabulary, and weights of their own."""
    data = write_tsv(commands_of_session.folder / "others.tsv", pairs(300, seed=77))
    options = ["--init-from", word_run, "--seed", 9, "--max-steps", 25, "--workers", 0]
    options += ["--src", "en", "--tgt", "de", "--deterministic", "--device", "cpu"]
    commands_of_session("train", "--data", data, "--run-dir", "other-words", *options)
    return word_run, commands_of_session.folder / "other-words"


LINES = ["the old woman sees", "a red book", "not today", "the dog likes the small child"]
SEARCH = ["--beam", 4, "--n-best", 4, "--length-penalty", 1, "--max-length", 12]


def test_an_ensemble_of_a_run_with_itself_is_the_run(gapless, two_runs):
    """Averaged with itself a model gives the same hypotheses and scores."""
    run, _ = two_runs
    alone = gapless.n_best(run, LINES, *SEARCH)
    found = gapless.n_best(run, LINES, *SEARCH, *ensemble(run))

    for ours, wanted in zip(found, alone, strict=True):
        assert dict(ours) == pytest.approx(dict(wanted), abs=2e-4)


def test_an_ensemble_averages_probabilities(gapless, two_runs):
    """The score of each hypothesis is the log of the mean of both models' probabilities, token by token."""
    (vocabs, one), (_, other) = (model_of(run) for run in two_runs)
    found = gapless.n_best(two_runs[0], LINES, *SEARCH, *ensemble(two_runs[1]))

    assert found != gapless.n_best(two_runs[0], LINES, *SEARCH)
    for line, ours in zip(LINES, found, strict=True):
        (source,) = vocabs.src.encode([line])
        for text, score in ours:
            (ids,) = vocabs.tgt.encode([text])
            total = sum(
                math.log(
                    sum(
                        float(next_log_probs(model, source, [ids[:position]])[0, token].exp()) / 2
                        for model in (one, other)
                    )
                )
                for position, token in enumerate([*ids, 3])
            )
            assert score == pytest.approx(total / (len(ids) + 1), abs=2e-4)


def test_runs_of_other_vocabularies_are_no_ensemble(gapless, word_run, subword_run):
    """One line names the run that does not fit."""
    ended = gapless.fails("translate", word_run, "the cat", *ensemble(subword_run))

    ended.check_refused(subword_run.name, "vocabular")


# ------------------------------------------------------------------ scores and trackers


def test_without_comet_one_line_says_what_is_needed(gapless, word_run):
    """COMET without its package: one line names the extra."""
    if importlib.util.find_spec(COMET_LIBRARY):
        pytest.skip("COMET is installed")
    ended = gapless.fails("evaluate", word_run, "--device", "cpu", *comet("no-such-model"))
    said = [line for line in (ended.out + ended.err).splitlines() if "COMET" in line]

    ended.check_no_traceback()
    assert len(said) == 1
    assert COMET_EXTRA in said[0]


FAKE_TRACKER = """
import json, pathlib

class Anything:
    def __init__(self, name):
        self._name = name
    def __call__(self, *given, **named):
        row = [self._name, given, sorted(named)]
        with pathlib.Path("tracked.jsonl").open("a") as file:
            file.write(json.dumps(row, default=repr) + "\\n")
        return Anything(self._name)
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        pass

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name)
"""


@pytest.mark.slow  # Trains twice, each in a process of its own.
def test_a_tracker_gets_what_the_run_measures(gapless, splits, tmp_path):
    """The tracker's library gets the losses that the run's metrics have, in order, and training has the same bits."""
    fake = f"import sys, types; fake = types.ModuleType({TRACKER!r}); exec({FAKE_TRACKER!r}, fake.__dict__)"
    fake += f"; sys.modules[{TRACKER!r}] = fake"
    options = [*WORDS, "--max-steps", 12, "--max-length", 20, "--val-interval", 1]
    gapless.train(splits, "plain", *options)
    gapless.train(splits, "tracked", *options, *tracked(), before=fake, real=True)
    rows = map(json.loads, (tmp_path / "tracked.jsonl").read_text().splitlines())
    numbers = [
        value
        for _, given, _ in rows
        for one in given
        if isinstance(one, dict)
        for value in one.values()
    ]

    validations = losses(tmp_path / "plain")[1]
    assert losses(tmp_path / "tracked") == losses(tmp_path / "plain")
    assert len(validations) > 1
    seen = [value for value in numbers if value in validations]
    assert seen[: len(validations)] == validations


def test_without_the_tracker_one_line_says_what_to_install(gapless, splits):
    """A tracker is in an extra, which the error names before anything is trained."""
    absent = f"import sys; sys.modules[{TRACKER!r}] = None"
    options = ["--data", splits, "--run-dir", "run", *TINY, *WORDS, "--max-steps", 2, *tracked()]
    ended = gapless.fails("train", *options, before=absent, real=True)

    ended.check_refused(TRACKER_EXTRA)
