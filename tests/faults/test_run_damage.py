"""A damaged run folder is never used without a word: it falls back, or refuses in one line."""

from __future__ import annotations

import pytest

from faults.run_damage import run_cases
from faults.runs import checkpoints


@pytest.mark.slow
@pytest.mark.xdist_group("processes: run damage")
def test_every_kind_of_damage(launcher, tmp_path):
    """A sample of the cases of `python -m faults.run_damage`, from every file of a run."""
    _, wrong = run_cases([launcher], tmp_path, 16, report=lambda *_, **__: None)

    assert wrong == []


def test_a_whole_run_is_verified(finished, command):
    """A run that nothing happened to is whole, and each of its checkpoints is listed."""
    verified, listed = (command("checkpoint", what, finished) for what in ("verify", "list"))

    verified.check_done()
    listed.check_done()
    for name in [*checkpoints(finished), "best", "final"]:
        assert name in listed.out


@pytest.mark.parametrize("what", ["absent", "a file", "no run"])
@pytest.mark.parametrize("name", ["list", "verify"])
def test_what_is_no_run(command, tmp_path, name, what):
    """Another folder, a file or nothing is refused in one line."""
    path = tmp_path / "what"
    if what == "a file":
        path.write_text("no run")
    elif what == "no run":
        path.mkdir()

    command("checkpoint", name, path).check_refused("what")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--keep", "0"), ("--grace", "nan"), ("--loader-timeout", "-1"), ("--save-every", "-5")),
        *(("--capture-memory", "1e308"), ("--length-penalty", "1e300"), ("--lr", "1e308")),
        *((flag, f"1{'0' * 30}") for flag in ("--beam", "--max-length", "--d-model")),
        ("--on-nonfinite", "ignore"),
    ],
)
def test_settings_that_cannot_be(command, tmp_path, flag, value):
    """Such as sizes that torch cannot count to are refused by name, before anything is made."""
    ended = command("train", "--run-dir", tmp_path / "run", "--device", "cpu", flag, value)

    ended.check_refused(flag)
    assert not (tmp_path / "run").exists()
