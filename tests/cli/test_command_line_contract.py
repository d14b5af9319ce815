"""What the command line promises, whatever it is made of: one line for a mistake, help, completion, bars.

Guarded from outside, through the command itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from cli.conftest import TINY, make_pairs


SRC = Path(__file__).parents[2] / "src"

WORKLOAD = """
import torch
import gapless


def make(device):
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

    def step(batch):
        inputs, targets = batch
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    loader = torch.utils.data.DataLoader(data, batch_size=8)
    return gapless.Workload(model=model, optimizer=optimizer, batches=loader, step=step)
"""

# What a plain installation of gapless, which needs torch alone, does not bring.
OF_EXTRAS = [
    *("numpy", "sentencepiece", "sacrebleu", "safetensors", "yaml", "tensorboard"),
    *("langcodes", "language_data", "tqdm", "shtab"),
]

# Runs commands one after the other, with a line of its own around each of them in both streams.
DRIVER = """
import sys

sys.modules |= dict.fromkeys(sys.argv[1].split())
from gapless.cli.main import run_command

for command in sys.stdin.read().splitlines():
    for stream in (sys.stdout, sys.stderr):
        print("\\n====", command, file=stream, flush=True)
    code = run_command(command.split())
    print("\\n====ended", code, flush=True)
"""

ON_WORKLOAD = "--workload work.py:make --device cpu"
RUNS = {
    "verify": f"verify --steps 4 {ON_WORKLOAD}",
    "compare": "compare --plans blocking,auto --steps 4 --rounds 1 --warmup-rounds 1 --verify-steps 4 "
    + ON_WORKLOAD,
    "train": f"train --data d.tsv --run-dir run --epochs 1 {' '.join(TINY)}",
}


def environment(*folders, **variables):
    paths = os.pathsep.join([*map(str, folders), str(SRC)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}


def listed():
    """Return the commands that `gapless --help` lists."""
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(COLUMNS="100"),
    )
    _, _, below = done.stdout.partition("commands:")
    return re.findall(r"^ {2,8}([a-z][a-z-]+)(?: |$)", below, re.MULTILINE)


COMMANDS = listed()

MISTAKES = {
    # ---- unknown flags ----
    "an unknown flag before a command": ("--frobnicate", ["--frobnicate"]),
    **{
        f"an unknown flag of {name}": (f"{name} --frobnicate{rest}", ["--frobnicate"])
        for name, rest in {
            "train": "",
            "translate": " run",
            "evaluate": " run",
            "checkpoint": " list run",
            "verify": "",
            "compare": "",
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


@pytest.mark.parametrize(
    "typed", ["train --seed two", "plans --frobnicate", "trian", "train --epoch 3", "--frobnicate"]
)
def test_a_mistake_ends_a_real_process_the_same_way(typed, process):
    """What the cases above see in this process is what a shell sees."""
    done = process(*typed.split(), real=True)
    out, err = (
        text.decode() if isinstance(text, bytes) else text for text in (done.stdout, done.stderr)
    )

    assert (done.returncode, out, err.count("\n")) == (2, "", 1)
    assert "--help" in err


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--gpu", "--device"),
        ("--bs", "--batch-size"),
        ("--output_dir", "--run-dir"),
        ("--num-workers", "--workers"),
        ("--fp16", "--precision"),
        ("--learning-rate", "--lr"),
    ],
)
def test_flags_of_other_programs_are_unknown_like_any_other(typed, ours, gapless):
    """There is no list of them that leads to ours."""
    outcome = gapless("train", typed, "1")

    assert (outcome.code, outcome.out) == (2, "")
    assert typed in outcome.err
    assert ours not in outcome.err.replace(typed, "")


def width(line):
    return sum(1 + (unicodedata.east_asian_width(sign) in "WF") for sign in line)


def test_the_help_lists_the_commands():
    """Those that a user has today, at the least."""
    assert {"train", "translate", "evaluate", "checkpoint", "verify", "compare", "doctor"} < set(
        COMMANDS
    )
    assert {"explain", "plans", "completion"} < set(COMMANDS)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", ["", *COMMANDS, "checkpoint list", "checkpoint verify"])
def test_help_exits_well_and_fits_a_terminal(command, columns, gapless, monkeypatch):
    """Of every command and subcommand, on standard output alone, at 80 columns and at 100."""
    monkeypatch.setenv("COLUMNS", str(columns))

    outcome = gapless(*command.split(), "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: gapless {command}".strip().partition(" list")[0][:20])
    assert [line for line in outcome.out.splitlines() if width(line) > columns] == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_short_flag_of_help_is_the_long_one(command, gapless):
    """`-h` prints what `--help` prints."""
    assert gapless(*command.split(), "-h") == gapless(*command.split(), "--help")


# ---- completion --------------------------------------------------------------------------------


def shells():
    """Return the shells that `gapless completion --help` names."""
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "completion", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(COLUMNS="100"),
    )
    return [shell for shell in ("bash", "zsh", "tcsh") if re.search(rf"\b{shell}\b", done.stdout)]


SHELLS = shells()

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


@pytest.fixture
def offered(gapless, tmp_path):
    """Return what says which words bash offers for the last of some words."""
    printed = gapless("completion", "bash")
    assert printed.code == 0, printed.err
    (tmp_path / "script").write_text(printed.out)
    (tmp_path / "pairs.tsv").touch()

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return {word.strip() for word in done.stdout.splitlines()} - {""}

    return ask


def test_completion_knows_bash_and_zsh():
    """And says so in its help."""
    assert {"bash", "zsh"} <= set(SHELLS)


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
        (("doctor", "--format", ""), {"text", "json", "sarif"}),
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


# ---- what is not installed ---------------------------------------------------------------------


def stubbed(folder, blocked):
    """Return a folder that keeps a process from importing some packages."""
    stub = folder / "stub"
    stub.mkdir()
    (stub / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({list(blocked)!r}))\n"
    )
    return stub


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_without_shtab_names_the_extra(shell, tmp_path):
    """One line with what to install, and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "completion", shell],
        capture_output=True,
        text=True,
        check=False,
        env=environment(stubbed(tmp_path, ["shtab"])),
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "shtab" in done.stderr
    assert re.search(r"pip install \"?'?gapless\[\w+\]", done.stderr)


@pytest.mark.parametrize("arguments", ["-c 'import gapless'", "--version", "--help"])
def test_nothing_is_imported_before_it_is_needed(arguments):
    """Neither torch nor a package of an extra for `import gapless`, the version and the list of commands."""
    run = ["-c", "import gapless"] if "import" in arguments else ["-m", "gapless", arguments]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *run],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }

    assert "gapless" in imported
    assert imported & {"torch", *OF_EXTRAS} == set()


@pytest.mark.parametrize("arguments", ["--version", "--help", "train --help", "plans"])
def test_what_needs_no_package_runs_without_any(arguments, tmp_path):
    """Where neither torch nor any extra can be imported."""
    done = subprocess.run(
        [sys.executable, "-m", "gapless", *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
        env=environment(stubbed(tmp_path, ["torch", *OF_EXTRAS])),
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def run_all(folder, commands, *, blocked=()):
    """Run commands in one process that has pipes; return code, output and errors of each."""
    (folder / "work.py").write_text(WORKLOAD)
    rows = "".join(f"{en}\t{zh}\n" for en, zh in make_pairs(80))
    (folder / "d.tsv").write_text(f"en\tzh\n{rows}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, " ".join(blocked)],
        input="\n".join(RUNS[name] for name in commands).encode(),
        capture_output=True,
        check=False,
        cwd=folder,
        env=environment(),
    )
    streams = [stream.decode() for stream in (done.stdout, done.stderr)]
    assert done.returncode == 0, streams[1]
    outs, errs = (re.split(r"\n==== .*\n", stream)[1:] for stream in streams)
    found = {}
    for name, out, err in zip(commands, outs, errs, strict=True):
        text, _, code = out.rpartition("\n====ended ")
        found[name] = (int(code), text, err)
    return found


@pytest.fixture(scope="module")
def without_tqdm(tmp_path_factory):
    """What commands print where there is no tqdm; `verify` and `compare` where there is torch alone."""
    core = run_all(tmp_path_factory.mktemp("core"), ["verify", "compare"], blocked=OF_EXTRAS)
    extra = run_all(tmp_path_factory.mktemp("extra"), ["train"], blocked=["tqdm", "shtab"])
    return core | extra


@pytest.fixture(scope="module")
def with_tqdm(tmp_path_factory):
    """What commands print with all that is installed here, into pipes."""
    return run_all(tmp_path_factory.mktemp("all"), list(RUNS))


@pytest.mark.parametrize("name", RUNS)
def test_without_tqdm_progress_comes_in_plain_lines(name, without_tqdm):
    """The command ends well and says how far it is, in lines that a file can keep."""
    code, out, err = without_tqdm[name]

    assert code == 0, err
    assert "Traceback" not in err
    assert re.search(r"\b\d+/\d+\b", out + err)
    assert not re.search(r"[\r\x1b\b]", out + err)


@pytest.mark.parametrize("name", RUNS)
def test_a_pipe_gets_no_bars(name, with_tqdm):
    """Where nobody looks nothing is drawn over: no carriage returns, and no signs of bars."""
    code, out, err = with_tqdm[name]

    assert code == 0, err
    assert not re.search(r"[\r\x1b\b█▏▎▍▌▋▊▉]", out + err)
    assert not re.search(r"\d+%\|", out + err)


@pytest.mark.parametrize("name", ["verify", "compare"])
def test_the_core_says_the_same_with_torch_alone(name, without_tqdm, with_tqdm):
    """Verdicts depend on no package of an extra."""
    said = [
        re.findall(r"\S+ against a plain loop: [\w-]+", found[name][1])
        for found in (without_tqdm, with_tqdm)
    ]

    assert said[0]
    assert said[0] == said[1]
