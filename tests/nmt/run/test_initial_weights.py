"""A run that starts with the vocabularies and weights of another, on other text."""

from __future__ import annotations

import shutil

import pytest

from gapless.device.numerics import numerics_restored
from gapless.errors import RunFolderError, UserError
from gapless.nmt.run.initial_weights import read_initial_weights
from gapless.nmt.run.new_run import choose_run, new_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.settings.config import make_config, settings_given
from tiny_run import Silent, as_asked, tiny_config, write_letters


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained run, which no test changes."""
    folder = tmp_path_factory.mktemp("trained")
    write_letters(folder / "d.tsv", count=40)
    settings = {"batch_size": 8, "warmup": 2, "beam": 1}
    with numerics_restored():
        config = tiny_config(folder, run_dir=str(folder / "first"), **settings)
        Trainer(new_run(as_asked(config)), observer=Silent()).train()
    return folder / "first"


@pytest.fixture
def first(trained, tmp_path, numerics):
    """A trained run in a folder of the test's own."""
    return shutil.copytree(trained, tmp_path / "first")


def further(first, **flags):
    """Train on other text, whose letters are some of the first run's and one more."""
    data = write_letters(first.parent / "other.tsv", letters="abcx", count=40, seed=2)
    asked = {
        "data": str(data),
        "device": "cpu",
        "workers": 0,
        "columns": "en,zh",
        "init_from": str(first),
        "run_dir": str(first.parent / "further"),
        **flags,
    }
    chosen = choose_run(settings_given(asked))
    trainer = Trainer(new_run(chosen), observer=Silent())
    trainer.train()
    return chosen, first.parent / "further"


def test_a_run_starts_with_the_weights_of_another(first):
    """With a rate that rounds to 0 they stay as they are; sizes and vocabularies are its own."""
    chosen, run = further(first, lr=1e-50, epochs=1)
    before = checkpoints.read_weights(checkpoints.final_path(first))
    after = checkpoints.read_weights(checkpoints.final_path(run))

    assert all(before[name].equal(after[name]) for name in before)
    for name in ("vocab.src.words.txt", "vocab.tgt.words.txt"):
        assert (first / name).read_bytes() == (run / name).read_bytes()
    assert chosen.config.d_model == 8
    assert chosen.choices[0].line.endswith("first/checkpoints/final, whose weights it starts with")


def test_its_rate_is_lower(first):
    """A third of what weights that are not trained get."""
    chosen, _ = further(first, epochs=1)

    assert chosen.config.lr == 0.013
    assert "for its weights are trained" in next(
        choice.line for choice in chosen.choices if "lr" in choice.settings
    )


def test_sizes_that_the_weights_do_not_have(first):
    """Are refused by name; the same ones are not."""
    for name, given, has in [("d_model", 16, 8), ("shared_vocab", True, False)]:
        asked = f"`{name}={given}`"
        told = rf"{asked} was given, but .*final.* has `{name}={has}`; leave {asked} out"
        with pytest.raises(UserError, match=told):
            further(first, **{name: given})
    further(first, d_model=8, epochs=1)


def test_settings_that_are_all_given_are_not_told(first):
    """No line of choices is without a setting."""
    of_first = vars(make_config({}, file=first / "config.yaml"))
    names = read_initial_weights(first).settings()
    chosen, _ = further(first, epochs=1, **{name: of_first[name] for name in names})

    assert [choice for choice in chosen.choices if not choice.settings] == []


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_that_is_no_run(first, name):
    """Is refused before anything is read or written."""
    with pytest.raises(RunFolderError, match="is not a run folder"):
        further(first, init_from=str(first.parent / name))
    assert not (first.parent / "further").exists()
