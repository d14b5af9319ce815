"""A mean is over the epochs that were asked for, whole, or it is refused by name."""

from __future__ import annotations

import pytest

from faults.resumes import MISHAPS


TRANSLATE = ["--device", "cpu", "red dog"]


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_member_of_a_mean(command, finished_copy, mishap):
    """A missing or damaged epoch in the middle is named, and no other mean is made."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "epoch-0002")

    ended = command("translate", finished_copy, "--average", 3, *TRANSLATE)

    ended.check_refused("epoch-0002")
    assert ended.out == ""


def test_a_mean_over_a_gap(command, finished_copy):
    """An epoch that is missing between others is not passed over for an older one."""
    MISHAPS["deleted"](finished_copy / "checkpoints" / "epoch-0002")

    command("translate", finished_copy, "--average", 2, *TRANSLATE).check_refused("epoch-0002")


def test_a_mean_that_needs_no_damaged_epoch(command, finished_copy):
    """A damaged epoch that is too old to count stops nothing."""
    MISHAPS["flipped"](finished_copy / "checkpoints" / "epoch-0001")

    command("translate", finished_copy, "--average", 2, *TRANSLATE).check_done()


@pytest.mark.parametrize("name", ["final", "best", "epoch-0002"])
def test_damaged_weights_are_not_used(command, finished_copy, name):
    """Weights that were damaged are named, whoever asks for them."""
    MISHAPS["flipped"](finished_copy / "checkpoints" / name)

    ended = command("translate", finished_copy, "--checkpoint", name, *TRANSLATE)

    ended.check_refused(name)
    assert ended.out == ""


@pytest.mark.parametrize("mishap", ["flipped", "without its manifest"])
@pytest.mark.parametrize("more", [["translate", "red dog"], ["evaluate"]], ids=" ".join)
def test_damaged_final_weights(command, finished_copy, mishap, more):
    """Damaged final weights are never replaced by the best ones without a word."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "final")

    ended = command(more[0], finished_copy, "--device", "cpu", *more[1:])

    ended.check_no_traceback()
    assert "final" in ended.err
