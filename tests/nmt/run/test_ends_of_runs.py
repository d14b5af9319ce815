"""When a run is validated, when it ends by itself, and which weights it ends with."""

from __future__ import annotations

import json
import math
import os
import signal
from types import SimpleNamespace

import pytest
from sacrebleu.metrics.bleu import BLEU

from gapless.errors import UserError
from gapless.nmt.run import final_model, learning, scores, validation
from gapless.nmt.run.learning import LearningWatch
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.resume import resumed_run
from gapless.nmt.run.stopping import TimeLimit
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.training_progress import TrainingProgress
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.defaults import Facts, choose, chosen_settings
from gapless.nmt.settings.score_tokenizer import ScoreTokenizer
from tiny_run import as_asked, tiny_config, write_letters


pytestmark = pytest.mark.quick_tests(14)


class Listener:
    """Keeps what a run notes, and its warnings of what it does not learn."""

    def __init__(self):
        self.notes, self.warnings = [], []

    def warned(self, text):
        # Others are of the language, which nobody named.
        if "warm-up" in text or "rate rises" in text:
            self.warnings.append(text)

    def noted(self, text):
        self.notes.append(text)

    def __getattr__(self, name):
        return lambda *_, **__: None


@pytest.fixture
def folder(tmp_path, numerics):
    write_letters(tmp_path / "d.tsv")
    return tmp_path


@pytest.fixture
def train(folder):
    """Train a tiny run of 14 updates an epoch; return its summary, notes and folder."""

    def run(name="run", **settings):
        settings = {"batch_size": 4, "warmup": 5, "beam": 1, **settings}
        config = tiny_config(folder, run_dir=str(folder / name), **settings)
        listener = Listener()
        summary = Trainer(new_run(as_asked(config)), observer=listener).train()
        return SimpleNamespace(summary=summary, path=folder / name, **vars(listener))

    return run


class Stopper:
    """Asks a run to stop after so many batches."""

    def __init__(self, *, after):
        self.left = after

    def __call__(self, *_, **__):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGTERM)


def resumed_notes(path, **flags):
    listener = Listener()
    config = make_config(flags, file=path / "config.yaml")
    Trainer(resumed_run(config, path), observer=listener).train()
    return listener.notes


def resume(path, **flags):
    config = make_config(flags, file=path / "config.yaml")
    return Trainer(resumed_run(config, path), observer=Listener()).train()


def rows(path, kind):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def final_bytes(path):
    return (path / "checkpoints" / "final" / "tensors.safetensors").read_bytes()


def epochs_kept(path):
    return [found.name for found in checkpoints.epoch_paths(path)]


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"epochs": 3}, 3),
        ({"epochs": 9, "max_steps": 20}, 2),
        ({"epochs": 9, "max_steps": 28}, 2),
        ({"epochs": 9, "max_steps": 20, "accumulate": 2}, 3),
        ({"epochs": 2, "max_steps": 99}, 2),
    ],
)
def test_an_epoch_is_told_of_those_that_are_made(folder, settings, last):
    """The bar ends at the last of them, though `epochs` would allow more."""

    class ToldError(Exception):
        pass

    def told(title):
        raise ToldError(title.number, title.num_epochs)

    config = tiny_config(folder, **{"batch_size": 4, "warmup": 5, "beam": 1, **settings})
    listener = Listener()
    listener.epoch_started = told

    with pytest.raises(ToldError) as caught:
        Trainer(new_run(as_asked(config)), observer=listener).train()

    assert caught.value.args == (1, last)


# --- validations ---


def test_validations_by_updates_change_no_bits(train):
    """They come inside epochs too, and the run computes what it does without them."""
    plain = train("plain", epochs=1, average=1)
    often = train("often", epochs=1, average=1, validate_every="5")

    assert [row["step"] for row in rows(often.path, "validation")] == [5, 10]
    assert plain.summary["loss"] == often.summary["loss"]
    assert final_bytes(plain.path) == final_bytes(often.path)


def test_the_best_weights_may_be_those_inside_an_epoch(train, monkeypatch):
    """Their state is saved right then, and they are compared with the last ones at the end."""
    found = iter([False, True, False, False, False])
    monkeypatch.setattr(TrainingProgress, "note_validation", lambda *_, **__: next(found))
    run = train(epochs=1, validate_every="5")

    assert checkpoints.step_of(checkpoints.best_path(run.path)) == 10
    (line,) = [note for note in run.notes if note.startswith("the final model has")]
    assert "best weights, of update 10" in line


@pytest.mark.slow
def test_a_run_that_stops_between_validations_goes_on_with_the_same_bits(train):
    """Inside an epoch, and between two validations there."""
    often = {"epochs": 3, "average": 1, "validate_every": "5", "dropout": 0.3}
    whole = train("whole", **often)
    parts = train("parts", **often, max_steps=17)
    resumed = resume(parts.path, max_steps=42)

    assert resumed["loss"] == whole.summary["loss"]
    assert final_bytes(parts.path) == final_bytes(whole.path)
    steps = [row["step"] for row in rows(parts.path, "validation")]
    assert steps == [row["step"] for row in rows(whole.path, "validation")]


def test_validations_by_time(train):
    """One comes after each update when that takes longer than the time between two."""
    run = train(epochs=1, validate_every="0.0001s")

    assert [row["step"] for row in rows(run.path, "validation")] == list(range(1, 14))


def test_short_epochs_keep_no_weights_unless_they_are_validated(train):
    """As the weights of the newest validated ones are enough for a mean."""
    run = train(epochs=6, val_interval=3)

    assert epochs_kept(run.path) == ["epoch-0003", "epoch-0006"]
    assert len(rows(run.path, "epoch")) == 6
    both = checkpoints.newest_epochs(run.path, 2, every_epoch=False)
    assert [path.name for path in both] == ["epoch-0003", "epoch-0006"]


@pytest.mark.slow
def test_a_mean_of_so_many_epochs_needs_all_of_them(train):
    """So their weights are kept, validated or not."""
    run = train(epochs=6, val_interval=3, average=3)

    assert epochs_kept(run.path)[-3:] == ["epoch-0004", "epoch-0005", "epoch-0006"]


def test_the_best_weights_are_those_of_the_highest_bleu():
    """Whatever the loss says; of equal BLEU the lower loss is better."""
    progress = TrainingProgress()
    found = [(5.0, 0.0), (4.0, 0.0), (6.0, 3.0), (3.0, 2.0), (7.0, 3.0)]
    best = [
        progress.note_validation(loss=loss, bleu=bleu, updates=at)
        for at, (loss, bleu) in enumerate(found)
    ]

    assert best == [True, True, True, False, False]
    assert (progress.best_loss, progress.best_bleu) == (3.0, 3.0)
    assert progress.validations_without_better == 1


def test_a_validation_of_the_same_weights_counts_once():
    """A run that is resumed at its end validates once more, and has not stopped getting better by that."""
    progress = TrainingProgress()
    progress.note_validation(loss=5.0, bleu=1.0, updates=7)

    again = TrainingProgress.of_state(progress.state())
    again.note_validation(loss=5.0, bleu=1.0, updates=7)

    assert again.validations_without_better == 0


# --- patience ---


def test_a_run_that_ended_is_resumed_as_often_as_one_likes(train):
    """Nothing is trained, so no validation counts; what ended it is named, and then it goes on."""
    run = train(max_steps=4, epochs=9, patience=2, val_interval=1, schedule="inverse-sqrt")
    for _ in range(2):
        notes = resumed_notes(run.path)

    longer = resume(run.path, max_steps=6)

    (line,) = [note for note in notes if note.startswith("nothing is left to train")]
    assert "after 4 updates; raise `max_steps`, which ended it" in line
    assert longer["batches"] > run.summary["batches"]


def test_a_run_whose_epochs_end_before_its_updates_says_so(train):
    """As one whose epochs were chosen for fewer updates."""
    run = train(max_steps=1000, epochs=1)

    assert [note for note in run.notes if "though `max_steps` says 1,000; raise `epochs`" in note]


def test_other_validation_pairs_begin_anew(folder, train):
    """Scores of easier ones would end the run, or let no other weights be the best."""
    run = train(epochs=2, max_steps=None, patience=3, val_interval=1)
    state = checkpoints.load_state(run.path, on_damaged=print)[1]["position"]
    (folder / "d.tsv").write_text((folder / "d.tsv").read_text().replace("a", "c"))
    config = make_config({"allow_changed_data": True, "epochs": 3}, file=run.path / "config.yaml")

    trainer = Trainer(resumed_run(config, run.path), observer=Listener())
    trainer.run.lock.release()

    assert state["best_loss"] < math.inf
    assert trainer.run.progress.best_loss == math.inf
    assert any("validations have other pairs" in note for note in trainer.run.notes)


def test_a_validation_that_was_due_when_a_run_was_stopped_is_made(train, monkeypatch):
    """After the same updates as in a run that nobody stopped."""
    whole = train("whole", epochs=1, validate_every="5")
    queued = Listener.batch_queued = Stopper(after=10)
    train("parts", epochs=1, validate_every="5")
    del Listener.batch_queued
    resume(whole.path.parent / "parts")

    steps = [
        [row["step"] for row in rows(whole.path.parent / name, "validation")]
        for name in ("whole", "parts")
    ]
    assert queued.left == 0
    assert steps[0] == steps[1] == [5, 10]


def test_a_limit_that_leaves_no_time_to_train_is_refused(train):
    """Instead of a final model that has learned nothing."""
    with pytest.raises(
        UserError, match=r"`max_time` is 0\.001s, of which .* nothing for training"
    ):
        train(max_time="0.001s")


def test_an_end_that_takes_longer_than_is_left_is_told():
    """As by the newest validation; none, and none without a limit."""
    now = [50.0]
    limits = [
        TimeLimit(limit, clock=lambda: now[0], end_validations=3.0) for limit in (60.0, None)
    ]
    assert [limit.seconds_over for limit in limits] == [0.0, 0.0]

    for limit in limits:
        limit.note_validation(10.0)

    assert [limit.seconds_over for limit in limits] == [20.0, 0.0]


def test_a_limit_of_time_is_validated_by_time():
    """How many updates it allows is only estimated."""
    facts = Facts(pairs=300, tokens=3000, vocabulary=500, is_accelerator=False, cores=2)

    assert chosen_settings(choose(facts, {"max_time": "60s"}))["validate_every"] == "10s"
    assert "validate_every" not in chosen_settings(
        choose(facts, {"max_time": "60s", "val_interval": 2})
    )


def test_a_run_that_gets_no_better_ends(train):
    """After so many validations in a row, with its final model, and says so."""
    run = train(epochs=50, lr=1e-50, patience=3, batch_size=8)

    assert run.summary["epochs"] == 4
    assert not run.summary["interrupted"]
    assert run.notes[-2].startswith("training ends after 28 updates: 3 validations brought no")
    assert final_bytes(run.path)


@pytest.mark.slow
def test_a_run_without_patience_is_resumed_with_more(train):
    """It stays finished otherwise."""
    run = train(epochs=6, lr=1e-50, patience=2)

    assert run.summary["epochs"] == 3
    assert resume(run.path)["epochs"] == 3
    assert resume(run.path, patience=4)["epochs"] == 5
    assert resume(run.path, patience=0)["epochs"] == 6


def test_validations_by_epochs_take_the_place_of_those_by_updates(tmp_path):
    """Whoever goes on with other settings than the file has, gets them."""
    file = tmp_path / "config.yaml"
    file.write_text("data: d.tsv\nvalidate_every: '5'\n")

    assert make_config({"val_interval": 2}, file=file).validation_interval() is None
    assert make_config({}, file=file).validation_interval() is not None


def test_chrf_is_of_the_test_pairs_alone(folder, monkeypatch):
    """Validations have none; how long they took is in the summary."""
    chrfs, chrf = [], scores.CHRF
    monkeypatch.setattr(scores, "CHRF", lambda: chrfs.append(chrf()) or chrfs[-1])
    monkeypatch.setattr(validation, "perf_counter", iter([0.0, 1.0]).__next__)
    run = new_run(as_asked(tiny_config(folder, epochs=1, beam=1)))
    summary = Trainer(run, observer=Listener()).train()

    assert (len(chrfs), summary["chrf_signature"]) == (1, str(chrfs[0].get_signature()))
    assert summary["validation_seconds"] == 1.0


def test_bleu_is_that_of_sacrebleu():
    """Also of later translations with the same references, whose words are kept."""
    references = ["a b c d e", "f g h i"]
    tokenizer = ScoreTokenizer(name="none", because="")
    plain = BLEU(tokenize="none", force=True)

    for hypotheses in (["a b c d e", "f g h x"], ["a b c", "i h g f"], references):
        found = scores.score(hypotheses, references, score_tokenizer=tokenizer, with_chrf=False)
        expected = plain.corpus_score(hypotheses, [references])
        assert (found.bleu, found.bleu_detail) == (expected.score, str(expected))
        assert found.bleu_signature == str(plain.get_signature())
        assert found.chrf is None


# --- time ---


def test_a_run_ends_in_its_time(train):
    """With its final model and scores, and says so."""
    run = train(epochs=100_000, max_time="2s")

    assert 0 < run.summary["epochs"] < 100_000
    assert run.summary["bleu"] is not None
    assert any("the rest of 2s is for the final model" in note for note in run.notes)
    assert final_bytes(run.path)


def test_time_is_kept_for_the_end():
    """A tenth at first, then what validations take, so many times; and some for the start."""
    now = [0.0]
    limit = TimeLimit(100.0, clock=lambda: now[0], end_validations=4.0)

    def up_at(seconds):
        now[0] = seconds
        return limit.seconds_left <= 0

    assert [up_at(85.9), up_at(86.0)] == [False, True]
    limit.note_validation(5.0)
    assert [up_at(73.9), up_at(74.0)] == [False, True]
    limit.note_validation(1.0)
    assert [up_at(89.9), up_at(90.0)] == [False, True]
    assert not TimeLimit(None, clock=lambda: math.inf, end_validations=4.0).is_up


def test_time_that_is_up_stays_up():
    """A quick last validation leaves more of it than was thought."""
    limit = TimeLimit(100.0, clock=lambda: 80.0, end_validations=4.0)
    limit.note_validation(5.0)
    first = limit.is_up
    limit.note_validation(1.0)

    assert (first, limit.is_up) == (True, True)


@pytest.mark.parametrize("text", ["90", "soon", "0s", "-2h"])
def test_a_limit_that_is_no_time(text):
    """Is refused by name; so is an interval of validations that is none."""
    with pytest.raises(UserError, match="`max_time` must be a time such as 90s, 10min or 2h"):
        make_config({"max_time": text})
    with pytest.raises(UserError, match="`validate_every` must be a number of updates"):
        make_config({"validate_every": "often"})


# --- the final model ---


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0, 6.0, 6.5], "mean of 3 epochs"),
        pytest.param([5.0, 5.0, 5.0], "last weights", marks=pytest.mark.slow),
        pytest.param([5.0, 4.0, 15.0], "best weights, of update 14", marks=pytest.mark.slow),
        ([5.0, 4.0, 5.5], "last weights"),
        # Twice as much, and still luck: few phrases of few sentences are right.
        ([1.2, 1.1, 2.4], "last weights"),
    ],
)
def test_the_final_model_is_what_translates_best(train, monkeypatch, scores, expected):
    """The best so far needs a lead, for it was the best of many; what won is said and kept."""
    bleu = iter(scores)
    monkeypatch.setattr(
        final_model, "score_validation", lambda *_, **__: SimpleNamespace(bleu=next(bleu))
    )
    monkeypatch.setattr(
        TrainingProgress, "note_validation", lambda progress, **_: progress.epoch == 1
    )
    run = train(epochs=3)
    sources = {
        "mean of 3 epochs": [checkpoints.epoch_path(run.path, epoch) for epoch in (1, 2, 3)],
        "last weights": [checkpoints.epoch_path(run.path, 3)],
        "best weights, of update 14": [checkpoints.epoch_path(run.path, 1)],
    }
    weights = checkpoints.average_weights(sources[expected])
    final = checkpoints.read_weights(checkpoints.final_path(run.path))

    assert run.summary["final_weights"] == expected
    assert all(weights[name].equal(final[name]) for name in weights)
    (line,) = [note for note in run.notes if note.startswith("the final model has")]
    assert f"the {expected}: validation BLEU" in line
    assert line.count(".") == 3
    is_passed_over = scores[2] > max(scores[:2]) and not expected.startswith("best")
    assert ("a lead that may be luck" in line) == is_passed_over


@pytest.mark.slow
def test_a_mean_of_so_many_epochs_is_taken_as_asked(train):
    """Without a comparison."""
    run = train(epochs=3, average=2)
    paths = [checkpoints.epoch_path(run.path, epoch) for epoch in (2, 3)]
    mean = checkpoints.average_weights(paths)
    final = checkpoints.read_weights(checkpoints.final_path(run.path))

    assert all(mean[name].equal(final[name]) for name in mean)
    assert not any("final model" in note for note in run.notes)


def test_a_mean_of_more_epochs_than_there_are_is_told(train):
    """A run of two epochs has no mean of nine."""
    run = train(epochs=2, average=9)

    assert [note for note in run.notes if "mean of 2 epochs, though `average=9`" in note]


def test_a_run_that_is_to_end_earlier_than_it_is_ends_there(train):
    """Its newest epoch is the final model, though the weights of the earlier end are gone."""
    run = train(epochs=5, average=1, keep=1)
    config = make_config({"epochs": 2}, file=run.path / "config.yaml")

    summary = Trainer(resumed_run(config, run.path), observer=Listener()).train()

    assert summary["steps"] == run.summary["steps"]
    assert checkpoints.final_path(run.path).exists()


def test_a_run_says_what_ended_it_and_that_nothing_is_left(train):
    """Where that is its number of updates; and a resume of a run that has ended trains nothing."""
    run = train(epochs=9, max_steps=20)
    listener = Listener()
    config = make_config({"lr": 0.5}, file=run.path / "config.yaml")

    Trainer(resumed_run(config, run.path), observer=listener).train()

    assert "training ends after 20 updates, as many as `max_steps` says" in run.notes
    assert [
        note for note in listener.notes if note.startswith("nothing is left to train: the run")
    ]


@pytest.mark.parametrize("value", ["some", 0, -1])
def test_an_average_that_is_none(value):
    """Is refused by name."""
    with pytest.raises(UserError, match="`average` must be"):
        make_config({"average": value})


# --- runs that cannot learn ---


def test_fewer_updates_than_the_warm_up(train):
    """Are warned of before they are made, once."""
    run = train(epochs=2, warmup=4000)

    (line,) = run.warnings
    assert line.startswith("the run makes 28 updates, but its rate rises for 4,000")
    assert "lower `warmup` to 2" in line


def test_a_run_that_has_ended_is_not_told_of_updates_that_it_will_not_make(train):
    """It is told alone that nothing is left."""
    path, listener = train(epochs=1).path, Listener()
    config = make_config({"max_steps": 5}, file=path / "config.yaml")
    Trainer(resumed_run(config, path), observer=listener).train()

    assert [line for line in listener.warnings if "its rate rises" in line] == []
    told = "nothing is left to train: the run has ended after 14"
    assert [note for note in listener.notes if note.startswith(told)]


def test_a_run_that_ended_within_its_warm_up():
    """Is told so at its end, if nobody could know before."""
    warnings = []
    run = SimpleNamespace(
        total_updates=700,
        config=SimpleNamespace(warmup=300),
        step=SimpleNamespace(num_updates=42),
        is_finished=True,
    )
    watch = LearningWatch(run, warn=warnings.append)
    for look in (watch.at_start, watch.at_validation, watch.at_end, watch.at_end):
        look()

    (line,) = warnings
    assert line.startswith("the run made 42 updates, but its rate rises for 300")


def test_a_model_that_learns_nothing(train):
    """Is compared with the frequencies of tokens when its run ends, once."""
    run = train(epochs=4, lr=1e-50)

    (line,) = run.warnings
    assert line.startswith("update 56, after the warm-up and the last: a target token costs ")
    assert "the frequencies of tokens alone would give 2." in line
    assert line.endswith("so train longer")
    assert rows(run.path, "epoch")[-1]["step"] == 4


@pytest.mark.parametrize(
    ("warmup", "updates", "is_finished", "expected"),
    [
        (0, 1, False, None),
        (30, 99, False, None),
        (30, 100, False, "change `lr`, or train longer"),
        (70, 139, False, None),
        (70, 140, False, "change `lr`, or train longer"),
        (70, 120, True, "so train longer"),
        (70, 60, True, None),
    ],
)
def test_a_model_is_judged_after_its_warm_up_and_enough_updates(
    monkeypatch, warmup, updates, is_finished, expected
):
    """A young model knows nothing yet, and its rate need not be wrong."""
    monkeypatch.setattr(learning, "training_loss", lambda _: 3.0)
    warnings = []
    run = SimpleNamespace(
        config=SimpleNamespace(warmup=warmup),
        step=SimpleNamespace(num_updates=updates),
        is_finished=is_finished,
        task=SimpleNamespace(train=SimpleNamespace(target_entropy=lambda: 2.0)),
    )
    watch = LearningWatch(run, warn=warnings.append)
    for _ in range(2):
        watch.at_validation()

    assert len(warnings) == (expected is not None)
    assert all(line.endswith(expected) for line in warnings)


def test_a_model_that_learns(train):
    """Is not warned of."""
    run = train(epochs=8, lr=1e-2, d_model=32, ffn=32, val_interval=8, schedule="constant")

    assert run.warnings == []
