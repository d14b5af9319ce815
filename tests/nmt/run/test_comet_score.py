"""COMET scores what was translated, and a tracker that fails costs no run."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gapless.errors import UserError
from gapless.nmt.run.comet_score import Comet
from gapless.nmt.run_folder.tracker import Tracker


@pytest.fixture
def comet(monkeypatch):
    """A package as COMET's, whose model counts what it is given."""
    module, given = ModuleType("comet"), []

    def load_from_checkpoint(path):
        given.append(path)
        return SimpleNamespace(predict=predict)

    def predict(rows, **options):
        given.append((rows, options["gpus"]))
        return SimpleNamespace(system_score=0.5)

    module.load_from_checkpoint = load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", module)
    return given


def test_comet_gets_sources_translations_and_references(comet, tmp_path):
    """From the checkpoint in the folder that a download leaves."""
    (tmp_path / "checkpoints").mkdir()
    file = tmp_path / "checkpoints" / "model.ckpt"
    file.touch()

    found = Comet(tmp_path, uses_gpu=False).score(["a"], ["b"], ["c"])

    assert found == 0.5
    assert comet == [str(file), ([{"src": "a", "mt": "b", "ref": "c"}], 0)]


def test_a_comet_model_that_is_not_there(comet, tmp_path):
    """Is named; nothing is downloaded."""
    with pytest.raises(UserError, match=r"absent does not exist, .* COMET model"):
        Comet(tmp_path / "absent", uses_gpu=False)


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ("init", ["init"]),
        ("log", ["init", {"train/loss": 1.5, "train/step": 3}]),
        (
            "finish",
            ["init", *({"train/loss": 1.5, "train/step": step} for step in (3, 4)), "finish"],
        ),
    ],
)
def test_a_tracker_that_fails_is_left_out(monkeypatch, tmp_path, failing, calls):
    """Whether nobody is logged in, or the network is gone: one warning, and the run goes on."""
    seen = []

    def call(name, what, result=None):
        seen.append(what)
        if name == failing:
            raise OSError("no network")
        return result

    run = SimpleNamespace(
        log=lambda row: call("log", row), finish=lambda: call("finish", "finish")
    )
    module = ModuleType("wandb")
    module.init = lambda **_: call("init", "init", run)
    monkeypatch.setitem(sys.modules, "wandb", module)

    def track():
        tracker = Tracker("wandb", tmp_path, {})
        tracker.log("train", 3, {"loss": 1.5, "tokens": None})
        tracker.log("train", 4, {"loss": 1.5})
        tracker.close()

    with pytest.warns(UserWarning, match="gets nothing more: no network") as warned:
        track()

    assert seen == calls
    assert len(warned) == 1
