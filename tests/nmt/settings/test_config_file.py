"""Settings that were removed, in files of runs from before."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from unittest.mock import Mock

import pytest

from gapless.cli.shared_options import warn_of_removed
from gapless.errors import UserError
from gapless.nmt.run import new_run, resume, trainer
from gapless.nmt.run.run_report import Observer
from gapless.nmt.run_folder.folder import CONFIG, files_of_run, read_config
from gapless.nmt.settings import config_file
from gapless.nmt.settings.config import TrainConfig, make_config
from gapless.nmt.settings.config_file import REMOVED, Removed
from tiny_run import tiny_config


GONE = {
    "gear": Removed(default=None, now="the loop finds its gear"),
    "wings": Removed(default=2.0, now="all runs have two"),
    "horn": Removed(default=True, now="the horn is always on"),
}


@pytest.fixture(autouse=True)
def gone(monkeypatch):
    monkeypatch.setattr(config_file, "REMOVED", GONE)


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "c.yaml"
        path.write_text("".join(f"{line}\n" for line in ("epochs: 3", *lines)))
        return path

    return write


def test_a_removed_setting_at_its_default_is_ignored_in_one_line(file, capsys):
    """A file of a run from before can be used again, and one line says what is ignored."""
    given = file("gear: null", "wings: 2", "horn: true")

    warn_of_removed(given)

    assert make_config({}, file=given).epochs == 3
    assert capsys.readouterr().err == (
        f"gapless: warning: {given} has settings that were removed (gear, wings, horn); they are ignored\n"
    )


def test_a_file_without_removed_settings_is_not_spoken_of(file, capsys):
    """Nor is that there is no file."""
    warn_of_removed(file())
    warn_of_removed(None)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gear: 3", "gear is 3 in {file}, but this setting was removed: the loop finds its gear"),
        (
            "wings: null",
            "wings is none in {file}, but this setting was removed: all runs have two",
        ),
        ("horn: no", "horn is false in {file}, but this setting was removed: the horn is always"),
    ],
)
def test_a_removed_setting_of_another_value_is_an_error(file, line, told):
    """What it asks for is gone: the line names key, value, what all runs do, and what to do."""
    with pytest.raises(UserError) as error:
        warn_of_removed(file(line))

    assert str(error.value).startswith(told.format(file=file(line)))
    assert str(error.value).endswith("; take its line out")


@pytest.mark.parametrize(("wings", "error"), [(2, None), (3, "start a new run")])
def test_a_run_from_before_is_resumed_if_it_had_the_defaults(tmp_path, monkeypatch, wings, error):
    """One line says what is ignored; with another value, the run has to be started anew."""
    rows = {" ".join(row) for row in itertools.permutations("abcd")}
    (tmp_path / "d.tsv").write_text("".join(f"{row}\t{row}\n" for row in sorted(rows)))

    def files_of_old(*parts):
        files = files_of_run(*parts)
        return files | {CONFIG: files[CONFIG] + f"wings: {wings}\n".encode()}

    for writer in (trainer, new_run, resume):
        monkeypatch.setattr(writer, "files_of_run", files_of_old)
    run = tmp_path / "run"
    trainer.Trainer.new(tiny_config(tmp_path, max_steps=1), observer=Mock(spec=Observer)).train()
    config = replace(read_config(run), max_steps=2)

    if error is None:
        notes = trainer.Trainer.resume(config, run, observer=Mock(spec=Observer)).run.notes
        (note,) = notes
        assert note.endswith("has settings that were removed (wings); they are ignored")
    else:
        with pytest.raises(UserError, match=f"wings is 3 in .*{CONFIG}, but .*; {error}"):
            trainer.Trainer.resume(config, run, observer=Mock(spec=Observer))


def test_no_removed_setting_is_still_one():
    """The table of what is gone and the settings exclude each other."""
    assert not REMOVED.keys() & {item.name for item in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("tgt", "value", "score_tokenizer", "may"),
    [
        ("zh", "zh", None, True),
        ("zh", "auto:zh", None, True),
        ("de", "auto:13a", None, True),
        ("target", "de", None, True),
        ("target", "zh", None, False),
        ("target", "auto:zh", None, False),
        ("target", "zh", "zh", True),
    ],
)
def test_a_language_that_a_run_wrote_down_may_be_scored_as_now(tgt, value, score_tokenizer, may):
    """Runs from before wrote down which language their text showed; most are what `tgt` says."""
    others = {"tgt": tgt, "tgt_language": value, "score_tokenizer": score_tokenizer}

    assert REMOVED["tgt_language"].may_be_ignored(value, others) is may
