"""What the command line promises, whatever it is made of: one line for a mistake, help, completion, bars.

Guarded from outside, through the command itself.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess

import pytest

from gapless.cli.main import COMMANDS, run_command
from gapless.report.terminal_text import display_width


MISTAKES = {
    # ---- unknown flags ----
    "an unknown flag before a command": ("--frobnicate", ["--frobnicate"]),
    **{
        f"an unknown flag of {name}": (f"{name} --frobnicate{rest}", ["--frobnicate"])
        for name, rest in {
            "train": "",
            "translate": " run",
            "evaluate": " run",
            "export": " run out",
            "checkpoint": " list run",
            "verify": "",
            "compare": "",
            "run": " script.py",
            "doctor": " script.py",
            "explain": "",
            "plans": "",
            "completion": " bash",
        }.items()
    },
    "an unknown flag with a value": ("train --frobnicate=3", ["--frobnicate"]),
    "an unknown short flag": ("train -x", ["-x"]),
    "an unknown flag after known ones": ("train --seed 1 --frobnicate --lr 1", ["--frobnicate"]),
    # ---- missing values ----
    "a missing value at the end": ("train --seed", ["--seed"]),
    "a missing value before another flag": ("train --data --seed 3", ["--data"]),
    "a missing value of compare": ("compare --plans", ["--plans"]),
    "a missing value of verify": ("verify --workload", ["--workload"]),
    "one value where two are needed": ("doctor --diff one", ["--diff"]),
    "a missing run": ("translate", ["RUN"]),
    "a missing run of evaluate": ("evaluate --json", ["RUN"]),
    "a missing folder to export to": ("export run", ["OUT"]),
    "a missing action": ("checkpoint", ["ACTION|list"]),
    "a missing shell": ("completion", ["SHELL|bash"]),
    # ---- wrong types ----
    "a word for a whole number": ("train --seed two", ["--seed", "two", "number|int"]),
    "a fraction for a whole number": ("train --epochs 1.5", ["--epochs", "1.5", "number|int"]),
    "a word for a number": ("train --lr fast", ["--lr", "fast", "number|float"]),
    "a word for a number of verify": ("verify --steps many", ["--steps", "many"]),
    "a word for a number of compare": ("compare --rounds few", ["--rounds", "few"]),
    "a value for a switch": ("train --dry-run=yes", ["--dry-run", "yes"]),
    # ---- unknown choices ----
    "an unknown plan": ("train --plan fast", ["--plan", "fast", "gapless", "captured"]),
    "an unknown plan of verify": ("verify fast", ["PLAN", "fast", "captured"]),
    "an unknown precision": ("train --precision fp8", ["--precision", "fp8", "bf16"]),
    "an unknown action": ("checkpoint burn run", ["burn", "list", "verify"]),
    "an unknown shell": ("completion powershell", ["powershell", "bash", "zsh"]),
    "an unknown format": ("export run out --format onnx", ["--format", "onnx", "ctranslate2"]),
    "an unknown split": ("evaluate run --split dev2", ["--split", "dev2", "test"]),
    # ---- commands ----
    "an unknown command": ("trian", ["trian", "train"]),
    "an unknown command with flags": ("fit --data d.tsv", ["fit"]),
    "an argument too many": ("plans all", ["all"]),
    "an argument that train does not take": ("train d.tsv", [r"d\.tsv"]),
    # ---- flags that exclude each other ----
    "two ways to go on": ("train --resume r --resume-if-there", ["--resume", "--resume-if-there"]),
    "going on with other settings": ("train --resume r --config c", ["--resume", "--config"]),
    "sentences and a file": ("translate run text --file f", ["--file"]),
    "reading and comparing": ("doctor --static --diff a b", ["--static", "--diff"]),
    "reading and running": ("doctor --static -m x", ["--static", "-m"]),
    "a workload and data": ("compare --workload w.py:f --data d", ["--workload", "--data"]),
    # ---- abbreviations ----
    "an abbreviation of a flag": ("train --epoch 3", ["--epoch(?!s)"]),
    "an abbreviation with one meaning": ("train --dry", [r"--dry(?!-run)"]),
    "an abbreviation with a value": ("train --dat=d.tsv", ["--dat(?!a)"]),
    "an abbreviation of compare": ("compare --round 1", ["--round(?!s)"]),
    "an abbreviation of the version": ("--vers", ["--vers(?!ion)"]),
    "an abbreviation of a switch that is off": ("train --no-check", ["--no-check(?!-)"]),
    "an abbreviation of a command": ("trans run", ["trans(?!late)"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_it_and_the_help(name, gapless):
    """Exit code 2, nothing on standard output, and no traceback; what is wrong and `--help` are named."""
    typed, says = MISTAKES[name]

    outcome = gapless(*typed.split())

    assert (outcome.code, outcome.out, outcome.new_files) == (2, "", [])
    assert outcome.err.startswith("gapless")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert [part for part in [*says, "--help"] if not re.search(part, outcome.err)] == []


def test_a_mistake_ends_a_real_process_the_same_way(process):
    """What the cases above see in this process is what a shell sees."""
    done = process("train", "--seed", "two", real=True)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--help" in done.stderr


@pytest.mark.parametrize("command", ["", *COMMANDS, "checkpoint list"])
def test_help_exits_well_and_fits_a_terminal(command, gapless, monkeypatch):
    """Of every command, on standard output alone, at 80 columns; `-h` is the same."""
    monkeypatch.setenv("COLUMNS", "80")

    outcome = gapless(*command.split(), "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: gapless {command}".strip().partition(" list")[0][:20])
    assert [line for line in outcome.out.splitlines() if display_width(line) > 80] == []
    assert gapless(*command.split(), "-h") == outcome


# ---- completion --------------------------------------------------------------------------------


SHELLS = ("bash", "zsh", "tcsh")

# Asks the function that is registered what it offers for the last of the given words.
ASK = """
source ./script
found=$(complete -p gapless) || exit 9
[[ $found =~ -F\\ ([^ ]+) ]] || exit 8
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
COMPREPLY=()
${BASH_REMATCH[1]} gapless "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """Return what says which words bash offers for the last of some words."""
    folder = tmp_path_factory.mktemp("completion")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run_command(["completion", "bash"]) == 0
    (folder / "script").write_text(printed.getvalue())
    (folder / "pairs.tsv").touch()

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        return {word.strip() for word in done.stdout.splitlines()} - {""}

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_one_that_its_shell_takes(shell, gapless, tmp_path):
    """On standard output alone; the shell itself reads it without a word."""
    outcome = gapless("completion", shell)

    assert (outcome.code, outcome.err) == (0, "")
    assert "gapless" in outcome.out
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    (tmp_path / "script").write_text(outcome.out)
    read = subprocess.run(
        [shell, "-n", "script"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (read.returncode, read.stdout + read.stderr) == (0, "")


@needs_bash
def test_bash_completes_the_names_of_commands(offered):
    """All of them, and those that begin as typed."""
    assert set(COMMANDS) <= offered("gapless", "")
    assert offered("gapless", "tra") == {"train", "translate"}
    assert offered("gapless", "comp") == {"compare", "completion"}


@needs_bash
def test_bash_completes_every_flag_of_train(offered, gapless):
    """Those that its help lists, the ones that switch off included."""
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", gapless("train", "--help").out))
    # Prose of the help names flags of its own, none of another command.
    assert {"--data", "--columns", "--src", "--tgt", "--plan", "--no-pin-memory"} <= flags

    assert flags <= offered("gapless", "train", "--")
    assert offered("gapless", "train", "--batch-") == {"--batch-size", "--batch-tokens"}


@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train", "--plan", "cap"), {"captured"}),
        (("train", "--precision", "b"), {"bf16"}),
        (("verify", "four"), {"four-stream"}),
        (("verify", "--against", "four"), {"four-stream"}),
        (("checkpoint", "l"), {"list"}),
        (("completion", "z"), {"zsh"}),
        (("train", "--seed", "1", "--no-pin"), {"--no-pin-memory"}),
        (("evaluate", "run", "--split", "t"), {"train", "test"}),
        (("doctor", "--format", ""), {"text", "json", "sarif", "github"}),
        # A file, where nothing is known of a text; and nothing, where a number is expected.
        (("train", "--data", "p"), {"pairs.tsv"}),
        (("train", "--config", "p"), {"pairs.tsv"}),
        (("doctor", "p"), {"pairs.tsv"}),
        (("train", "--epochs", ""), set()),
    ],
)
def test_bash_completes_values_that_are_known(words, expected, offered):
    """Choices of flags and arguments, flags behind other flags, and files."""
    assert offered("gapless", *words) == expected


@needs_bash
def test_bash_offers_no_flags_of_another_command(offered):
    """`verify` has none of the model."""
    found = offered("gapless", "verify", "--")

    assert {"--steps", "--workload"} <= found
    assert not found & {"--d-model", "--resume", "--beam"}
