"""What the terminal shows of a verification, from made-up records."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gapless.records.verification import (
    PLAIN_LOOP,
    Closeness,
    Difference,
    ElementDifference,
    LossDifference,
    RunSummary,
    TensorDifference,
    Verdict,
    Verification,
)
from gapless.records.wait_stats import WaitStats
from gapless.report.verification_text import verdict_lines, verification_text, why_not_comparable


def run(plan, losses=(2.0, 1.0), **changed):
    waits = WaitStats()
    waits.add("epoch_end", ms=0.1)
    return RunSummary(plan=plan, losses=list(losses), waits=waits, passes=(2,), **changed)


def verdict(plan="gapless", *, losses=(2.0, 1.0), **changed):
    """Return a verdict of identical runs, with changes."""
    same = Verdict(
        ours=run(plan, losses),
        theirs=run("blocking", losses),
        num_tensors=7,
        is_identical=True,
        difference=None,
        closeness=None,
    )
    return replace(same, **changed)


def difference(**changed):
    """Return what differs if two of eight elements of a weight do after step 3."""
    found = Difference(
        step=3,
        loss=LossDifference(step=4, ours=1.5, theirs=1.25),
        tensor=TensorDifference(
            step=3, name="parameter weight", detail=None, num_tensors=1, num_compared=7
        ),
        elements=ElementDifference(num_differing=2, num_elements=8, max_abs=0.5),
        is_repeated=True,
    )
    return replace(found, **changed)


def different(plan="gapless", **changed):
    return verdict(plan, is_identical=False, difference=difference(**changed))


def test_equal_bits_are_one_line_with_what_was_compared():
    """The line counts losses and tensors, and the replays if there were any."""
    replayed = verdict(ours=run("gapless", num_replays=1))

    assert verdict_lines(verdict()) == [
        "gapless against blocking: bit-identical (2 losses, 7 tensors x 2 steps)"
    ]
    assert verdict_lines(replayed)[0].endswith("x 2 steps, 1 of them replays)")


def test_a_difference_is_told_with_step_tensor_size_and_advice():
    """The tensor that differs first comes before the losses that follow from it."""
    lines = verdict_lines(different())

    assert lines[:4] == [
        "gapless against blocking: different, from step 3 on",
        "  parameter weight: 2 of 8 elements differ, by at most 0.5",
        "  1 of 7 tensors differ after step 3",
        "  first loss that differs, step 4: 1.5 against 1.25, difference 0.25",
    ]
    assert "the host need not wait for the device in each step" in lines[4]
    replayed = replace(different(), ours=run("captured", num_replays=2))
    assert "keeps the value of the capture" in verdict_lines(replayed)[4]


@pytest.mark.parametrize(
    ("max_abs", "text"), [(0.0, "only in the sign of zero"), (math.nan, "one side is NaN")]
)
def test_sizes_that_are_no_numbers_are_told_in_words(max_abs, text):
    """Zero and minus zero differ by nothing, NaN and a number by no number."""
    elements = ElementDifference(num_differing=1, num_elements=8, max_abs=max_abs)

    assert text in verdict_lines(different(elements=elements))[1]


def test_a_loss_that_alone_differs_comes_first():
    """If no tensor differs, the text says so after the loss."""
    lines = verdict_lines(different(step=4, tensor=None, elements=None))

    assert lines[1:3] == [
        "  loss of step 4: 1.5 against 1.25, difference 0.25",
        "  no tensor differs",
    ]


def test_a_difference_that_does_not_come_back_points_at_a_race():
    """Its size is unknown, because the values were to be read when both plans ran again."""
    lines = verdict_lines(different(elements=None, is_repeated=False))

    assert lines[1] == "  parameter weight: differed, but not when both were run again"
    assert any("points at a race" in line for line in lines)


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"step": 0}, "built differently each time"),
        ({}, "random numbers that are not seeded"),
        ({"name": "batch tensor 0"}, "batches are not the same each time"),
    ],
)
def test_advice_for_a_workload_that_does_not_equal_itself(changed, advice):
    """It depends on whether the start, a batch or another tensor differs first."""
    tensor = replace(
        difference().tensor, **({"name": changed.pop("name")} if "name" in changed else {})
    )

    lines = verdict_lines(different("blocking", tensor=tensor, **changed))

    assert lines[0].startswith("blocking against itself: not reproducible, from ")
    assert advice in " ".join(lines)


@pytest.mark.parametrize(
    ("step", "value", "is_advised"), [(2, math.nan, True), (1, math.inf, False)]
)
def test_equal_bits_without_finite_losses_are_inconclusive(step, value, is_advised):
    """The first such loss is named, and how many steps can be compared if any can."""
    losses = [value if number >= step else 1.0 for number in (1, 2)]

    lines = verdict_lines(verdict(losses=losses))

    assert lines[0] == (
        f"gapless against blocking: inconclusive: no difference, but the loss of step {step} is "
        f"{value}"
    )
    assert any("ask for 1 instead" in line for line in lines) is is_advised


def close(**changed):
    found = Closeness(
        tolerance=0.01,
        first_loss=None,
        largest_loss=0.001,
        largest_tensor=(0.0002, "parameter weight"),
        num_tensors_beyond=0,
        num_tensors=7,
    )
    return verdict(is_identical=False, closeness=replace(found, **changed))


def test_a_tolerance_is_told_with_the_largest_differences():
    """Within the tolerance it is one line, outside it with the first loss and the tensors."""
    loss = LossDifference(step=6, ours=1.5, theirs=1.25)

    (within,) = verdict_lines(close())
    outside = verdict_lines(close(first_loss=loss, num_tensors_beyond=2))

    assert within == (
        "gapless against blocking: within the tolerance 0.01; losses differ by at most 0.001 of "
        "their size, tensors at the end by at most 0.0002 (parameter weight)"
    )
    assert outside[0] == ("gapless against blocking: outside the tolerance 0.01, from step 6 on")
    assert outside[1] == "  loss of step 6: 1.5 against 1.25, difference 0.25"
    assert outside[3] == "  2 of 7 tensors are outside at the end"


def test_passes_over_the_batches_are_told_once_with_the_plain_loop():
    """Only the verdict on the plain loop itself has the line, and only if there was more than one pass."""
    several = replace(run("blocking"), passes=(1, 1))

    assert verdict_lines(verdict("blocking", theirs=several))[1:] == [
        "batches: 2 passes over 1 for 2 steps"
    ]
    assert len(verdict_lines(verdict("blocking"))) == 1
    assert len(verdict_lines(verdict(theirs=several))) == 1


def test_a_verification_ends_with_the_waits_of_every_plan():
    """Each plan is named once, with its waits by reason; those of a plain loop are not counted."""
    itself = verdict(PLAIN_LOOP, theirs=run(PLAIN_LOOP))
    plans = (verdict("blocking", theirs=run(PLAIN_LOOP)), verdict())

    lines = verification_text(Verification(itself=itself, plans=plans)).splitlines()

    assert [line.partition(":")[0] for line in lines[:-1]] == [
        "a plain loop against itself",
        "blocking against a plain loop",
        "gapless against blocking",
    ]
    assert lines[-1] == "host waits: blocking 1 (epoch_end 1); gapless 1 (epoch_end 1)"
    assert len(verification_text(Verification(itself=itself, plans=())).splitlines()) == 1


@pytest.mark.parametrize(
    ("itself", "reason"),
    [
        (verdict("blocking"), None),
        (different("blocking"), "the workload does not equal itself"),
        (verdict("blocking", losses=(1.0, math.nan)), "loss of step 2 is nan"),
    ],
)
def test_why_nothing_can_be_compared_is_told_with_what_to_do(itself, reason):
    """A reference that holds gives no reason."""
    found = why_not_comparable(itself)

    assert (found[0].partition(",")[0] if found else None) == reason


@pytest.mark.parametrize(
    ("reasons", "lines"),
    [
        (("a.py:1 no",), ["captured: nothing was verified: no step ran as a graph: a.py:1 no"]),
        (("one", "two"), [": no step ran as a graph: one", "  also: two"]),
        ((), ["no kind of batch came often enough; take more steps, or batches of fewer shapes"]),
    ],
)
def test_what_was_not_verified_is_told_with_all_reasons(reasons, lines):
    """A plan that captures every step, and has replayed none."""
    ours = run("captured", not_captured=reasons)
    found = Verification(
        itself=verdict(PLAIN_LOOP), plans=tuple(replace(verdict(), ours=ours) for _ in range(2))
    )

    last = verification_text(found).splitlines()[-len(lines) :]

    assert all(line.endswith(end) for line, end in zip(last, lines, strict=True))
    assert verification_text(found).count("nothing was verified") == 1


def test_a_plan_that_replayed_or_does_not_capture_was_verified():
    """One replay is enough, and other plans need none."""
    for ours in (run("captured", not_captured=("one",), num_replays=1), run("gapless")):
        found = Verification(itself=verdict(PLAIN_LOOP), plans=(replace(verdict(), ours=ours),))
        assert "nothing was verified" not in verification_text(found)
