"""The script that `gapless completion` prints, in a real shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gapless.cli.main import COMMANDS
from gapless.plans import PLANS


# Asks the shell's own function what it offers for the last of the given words.
ASK = """
source ./script
complete -p gapless
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_gapless
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(gapless, tmp_path):
    """Return a function that says what bash offers for the last of some words."""
    (tmp_path / "script").write_text(gapless("completion", "bash").out)

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        registered, *found = done.stdout.splitlines()
        assert registered == "complete -o default -F _gapless gapless"
        assert done.stderr == ""
        return [word for word in found if word]

    return ask


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gapless", "tra"], ["train", "translate"]),
        (["gapless", ""], [*COMMANDS, "--help", "--version"]),
        (["gapless", "train", "--batch"], ["--batch-size", "--batch-tokens"]),
        (["gapless", "train", "--plan", "ca"], ["captured"]),
        (["gapless", "train", "--seed", "1", "--no-pin"], ["--no-pin-memory"]),
        (["gapless", "verify", "--against", ""], list(PLANS)),
        (["gapless", "verify", "ev"], ["events", "events-interval"]),
        (["gapless", "evaluate", "run", "--split", "t"], ["train", "test"]),
        (["gapless", "doctor", "--format", ""], ["text", "json", "sarif"]),
        (["gapless", "doctor", "--stop"], ["--stop-after"]),
        # None of ours, so that the shell offers files.
        (["gapless", "translate", ""], []),
        (["gapless", "doctor", ""], []),
        (["gapless", "train", "--config", ""], []),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")
def test_bash_offers_what_can_stand_there(offered, words, expected):
    """Commands, options and their values come from the parsers; elsewhere there are files."""
    assert offered(*words) == expected


def test_zsh_reads_the_same_script_after_a_line_of_its_own(gapless):
    """It has a mode that understands bash's functions."""
    bash, zsh = gapless("completion", "bash").out, gapless("completion", "zsh").out

    assert zsh == f"autoload -U +X bashcompinit && bashcompinit\n{bash}"


def test_another_shell_is_refused(gapless):
    """Both that there are get named."""
    outcome = gapless("completion", "fish")

    assert outcome.code == 2
    assert "SHELL: expected one of bash, zsh, found 'fish'" in outcome.err
