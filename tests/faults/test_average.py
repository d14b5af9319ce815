"""An average is over the epochs that were asked for, whole, or it is refused by name."""

from __future__ import annotations

import pytest

from checkpoint.damage import flip, remove, truncate


pytestmark = pytest.mark.xdist_group("processes: average")

TRANSLATE = ["--device", "cpu", "red dog"]
MISHAPS = {
    "flipped": lambda folder: flip(next(folder.glob("*.safetensors")), -1, 0),
    "cut off": lambda folder: truncate(next(folder.glob("*.safetensors")), 100),
    "deleted": remove,
    "without its manifest": lambda folder: (folder / "manifest.json").unlink(),
    "of another epoch": lambda folder: (folder / "manifest.json").write_bytes(
        (folder.parent / "epoch-0001" / "manifest.json").read_bytes()
    ),
}


@pytest.mark.parametrize(
    "mishap",
    [
        "flipped",
        "deleted",
        *(
            pytest.param(m, marks=pytest.mark.slow)
            for m in list(MISHAPS)
            if m not in ("flipped", "deleted")
        ),
    ],
)
def test_a_member_of_an_average(run, finished_copy, mishap):
    """A missing or damaged epoch in the middle is named, and no other average is made."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "epoch-0002")

    ended = run("translate", finished_copy, "--average", 3, *TRANSLATE)

    ended.check_refused("epoch-0002")
    assert ended.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("mishap", MISHAPS)
def test_the_average_at_the_end_of_a_run(run, finished_copy, mishap):
    """A run that goes on does not average without a word over what is left."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "epoch-0002")

    ended = run("train", "--resume", finished_copy, "--epochs", 4, "--average", 4)

    ended.check_no_traceback()
    assert ended.code != 0
    assert "epoch-0002" in ended.err


def test_an_average_over_a_gap(run, finished_copy):
    """An epoch that is missing between others is not passed over for an older one."""
    remove(finished_copy / "checkpoints" / "epoch-0002")

    ended = run("translate", finished_copy, "--average", 2, *TRANSLATE)

    ended.check_refused("epoch-0002")


def test_an_average_that_needs_no_damaged_epoch(run, finished_copy):
    """A damaged epoch that is too old to count stops nothing."""
    MISHAPS["flipped"](finished_copy / "checkpoints" / "epoch-0001")

    run("translate", finished_copy, "--average", 2, *TRANSLATE).check_done()


@pytest.mark.parametrize(
    "name", ["final", *(pytest.param(n, marks=pytest.mark.slow) for n in ("best", "epoch-0002"))]
)
def test_damaged_weights_are_not_used(run, finished_copy, name):
    """Weights that were damaged are named, whoever asks for them."""
    MISHAPS["flipped"](finished_copy / "checkpoints" / name)

    ended = run("translate", finished_copy, "--checkpoint", name, *TRANSLATE)

    ended.check_refused(name)
    assert ended.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("mishap", ["flipped", "cut off", "without its manifest"])
@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_damaged_final_weights(run, finished_copy, mishap, command):
    """Damaged final weights are never replaced by the best ones without a word."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "final")
    text = ["red dog"] if command == "translate" else []

    ended = run(command, finished_copy, "--device", "cpu", *text)

    ended.check_no_traceback()
    assert "final" in ended.err
