"""Of torchrun's command line the doctor changes one thing: what each process runs."""

from __future__ import annotations

import pytest

from gapless.doctor.session.launcher import (
    is_launcher,
    launcher_as_module,
    with_command_in_workers,
)
from gapless.scripts import Program


DOCTOR = ["gapless", "doctor", "--steps", "5"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s.py"], ["-m", *DOCTOR, "s.py"]),
        (
            ["--nproc-per-node", "2", "sub/s.py", "--lr", "0.1", "--nproc-per-node", "3"],
            [
                "--nproc-per-node",
                "2",
                "-m",
                *DOCTOR,
                "sub/s.py",
                "--lr",
                "0.1",
                "--nproc-per-node",
                "3",
            ],
        ),
        (
            ["-m", "--standalone", "package.train", "-x", "--", "y"],
            ["-m", "--standalone", *DOCTOR, "-m", "package.train", "-x", "--", "y"],
        ),
        # No Python script, and what torchrun will refuse itself.
        (["--no-python", "bash", "run.sh"], None),
        (["--nproc-per-node"], None),
    ],
)
def test_each_process_runs_the_doctor_which_runs_the_script(words, expected):
    """Options of torchrun stay, and so do those of the script."""
    launcher = Program(target="torch.distributed.run", is_module=True, arguments=tuple(words))

    watched = with_command_in_workers(launcher, DOCTOR[1:])

    assert (watched and list(watched.arguments)) == expected


@pytest.mark.parametrize(
    ("target", "is_module", "expected"),
    [
        ("torch.distributed.run", True, True),
        ("torchrun", False, True),
        ("/opt/venv/bin/torchrun", False, True),
        ("torchrun", True, False),
        ("train.py", False, False),
    ],
)
def test_torchrun_is_known_by_its_names(target, is_module, expected):
    """The command, wherever it is, and the module."""
    program = Program(target=target, is_module=is_module)

    assert is_launcher(program) == expected
    if expected:
        assert launcher_as_module(program).target == "torch.distributed.run"
