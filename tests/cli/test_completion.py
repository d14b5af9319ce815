"""The script that `gapless completion` prints, in a real shell."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from gapless.cli.main import COMMANDS
from gapless.plans import PLANS


needs_shtab = pytest.mark.skipif(
    importlib.util.find_spec("shtab") is None, reason="shtab is of the extra cli"
)

# Asks the shell's own function what it offers for the last of some words.
ASK = """
source ./script
read -r _ _ _ _ function _ <<< "$(complete -p gapless)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function" gapless "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@needs_shtab
@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
def test_bash_offers_what_can_stand_there(gapless, tmp_path):
    """Commands, options and their values come from the parsers; where nothing is known there are files."""
    script = gapless("completion", "bash").out
    folder = tmp_path / "shell"
    folder.mkdir()
    (folder / "script").write_text(script)
    (folder / "pairs.tsv").touch()
    cases = [
        ("gapless tra", ["train", "translate"]),
        ("gapless ", [*COMMANDS]),
        ("gapless train --batch", ["--batch-size", "--batch-tokens"]),
        ("gapless train --plan ca", ["captured"]),
        ("gapless train --seed 1 --no-pin", ["--no-pin-memory"]),
        ("gapless verify --against ", [*PLANS]),
        ("gapless verify ev", ["events", "events-interval"]),
        ("gapless evaluate run --split t", ["train", "test"]),
        ("gapless doctor --format ", ["text", "json", "sarif"]),
        ("gapless doctor --stop", ["--stop-after"]),
        ("gapless train --data p", ["pairs.tsv"]),
        ("gapless train --config p", ["pairs.tsv"]),
        ("gapless doctor p", ["pairs.tsv"]),
        ("gapless train --epochs ", []),
    ]
    offered = {}
    for line, _ in cases:
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *line.split(" ")],
            capture_output=True, text=True, check=True, cwd=folder,
        )  # fmt: skip
        assert done.stderr == ""
        offered[line] = [word for word in done.stdout.splitlines() if word]

    assert offered == dict(cases)


@needs_shtab
@pytest.mark.parametrize(
    ("shell", "beginning"), [("zsh", "#compdef gapless\n"), ("tcsh", "#?.*\ncomplete gapless")]
)
def test_other_shells_have_scripts_of_their_own(gapless, shell, beginning):
    """They know the same options."""
    outcome = gapless("completion", shell)

    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(beginning, outcome.out)
    assert "resume-if-there" in outcome.out


def test_another_shell_is_refused(gapless):
    """Those that there are get named."""
    gapless("completion", "elvish").check_refused("SHELL", "bash", "zsh", "tcsh", "'elvish'")


def test_it_says_which_extra_it_needs(gapless, monkeypatch):
    """Where shtab is not installed."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    gapless("completion", "bash").check_refused(
        "gapless completion needs the extra cli", 'pip install "gapless[cli]"'
    )
