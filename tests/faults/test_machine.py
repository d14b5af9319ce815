"""Another machine than before: its clock jumps, its threads or its torch are others, it is small."""

from __future__ import annotations

import signal

import pytest

from faults.injected import JUMPING_CLOCK, SLOW
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import check_same_run, newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: machine")


def test_a_clock_that_jumps(run, data, finished, tmp_path):
    """Days forth and back change no bit, save no more often and end nothing."""
    ended = run(*train_options(data, tmp_path / "run", workers=2), before=JUMPING_CLOCK)

    ended.check_done()
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["10min", "1s", "0.5h"])
def test_saving_by_time(run, data, finished, tmp_path, interval):
    """Saves by time change no bit, whatever the wall clock does."""
    options = train_options(data, tmp_path / "run", save_every=interval)

    run(*options, before=JUMPING_CLOCK + SLOW).check_done()

    check_same_run(tmp_path / "run", finished)


@pytest.mark.parametrize(
    "value", ["0", "-5", "10 parsecs", "min", "1.5", "nan", "nanmin", "-3min"]
)
def test_an_interval_that_cannot_be(run, data, tmp_path, value):
    """A distance between saves that is none is refused with what it may be."""
    ended = run(*train_options(data, tmp_path / "run", save_every=value))

    ended.check_refused("--save-every")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--keep", "0"),
        ("--grace", "nan"),
        ("--beam", "1" + "0" * 30),
        ("--capture-memory", "1e308"),
        ("--length-penalty", "1e300"),
        *(
            pytest.param(flag, value, marks=pytest.mark.slow)
            for flag, value in (
                *(("--max-length", "1" + "0" * 30), ("--d-model", "4" + "0" * 30)),
                *(("--ffn", "1" + "0" * 30), ("--lr", "1e308")),
                *(("--length-penalty", "-11"), ("--encoder-layers", "1" + "0" * 30)),
            )
        ),
        pytest.param("--keep", "-1", marks=pytest.mark.slow),
        pytest.param("--grace", "-1", marks=pytest.mark.slow),
        pytest.param("--loader-timeout", "-1", marks=pytest.mark.slow),
        pytest.param("--loader-timeout", "nan", marks=pytest.mark.slow),
    ],
)
def test_settings_that_cannot_be(run, data, tmp_path, flag, value):
    """So are other settings, such as sizes that torch cannot count to: before anything is made."""
    ended = run(*train_options(data, tmp_path / "run"), flag, value)

    ended.check_refused(flag)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def killed(start, data, tmp_path):
    """A run that was killed."""
    process = start(*train_options(data, tmp_path / "run"), before=SLOW)
    process.until(lambda: newest_step(tmp_path / "run") >= 40, what="an update was saved")
    process.send(signal.SIGKILL)
    process.end()
    return tmp_path / "run"


@pytest.mark.slow
def test_another_number_of_threads(killed, run):
    """Sums in another order may round otherwise: a resume with other threads says so and goes on."""
    ended = run("train", "--resume", killed, before="import torch; torch.set_num_threads(2)")

    ended.check_done()
    assert "threads" in ended.out + ended.err


@pytest.mark.slow
def test_another_torch(killed, run):
    """So does a resume with another torch."""
    version = "import torch; torch.__version__ = torch.torch_version.TorchVersion('2.99.0')"

    ended = run("train", "--resume", killed, before=version)

    ended.check_done()
    assert "2.99.0" in ended.out + ended.err
    assert "differ" in ended.out + ended.err


def test_the_same_machine_warns_of_nothing(killed, run, finished):
    """Where nothing changed nothing is said."""
    ended = run("train", "--resume", killed)

    ended.check_done()
    assert ended.err == ""
    check_same_run(killed, finished)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_too_little_memory(start, data, tmp_path, workers):
    """A model that does not fit ends in one line with the bytes that were asked for."""
    little = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))"
    options = train_options(data, tmp_path / "run", workers=workers)

    ended = start(*options, "--d-model", 60_000, "--ffn", 60_000, before=little).end(
        limit=LIMIT_OF_FAULTS + 60
    )

    ended.check_refused("memory")
    assert any(part.isdigit() for part in ended.errors[0].replace(",", " ").split())
