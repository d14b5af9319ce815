"""Gradients that two ranks sum have the bits of one rank that accumulates."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ranks import sum_program as program


# The two ranks are started once.
pytestmark = pytest.mark.xdist_group("two ranks that sum")

WORLD = 2
SECONDS = 120


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """What each of two ranks printed."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    started = [
        subprocess.Popen(
            [sys.executable, program.__file__, str(rank), str(WORLD), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for rank in range(WORLD)
    ]
    try:
        ended = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * WORLD, [one[1] for one in ended]
    return [json.loads(out) for out, _ in ended]


def sent(case, gradient):
    """Return a gradient as it is sent to the other rank."""
    is_rounded = case.sends_bf16 and gradient is not None
    return gradient.to(torch.bfloat16) if is_rounded else gradient


def on_one_rank(case):
    """Return the bits of weights after one process trained on the batches of both ranks.

    With more than one batch a rank, each rank's gradients are summed first; rounded, if they are
    sent so.
    """
    sums_each_rank = case.accumulate > 1 or case.sends_bf16
    model = program.Model(case.dtype)
    optimizer = program.optimizer_of(model)
    weights = [one for one in model.parameters() if one.requires_grad]
    size = WORLD * case.accumulate
    for number in range(program.NUM_UPDATES):
        batches = [program.batch_of(number * size + place) for place in range(size)]
        tokens = max(1, sum(map(program.num_tokens, batches)))
        sums = []
        for rank in range(WORLD):
            for batch in batches[rank * case.accumulate : (rank + 1) * case.accumulate]:
                program.backward(model, batch, tokens)
            sums.append([sent(case, one.grad) for one in weights])
            if sums_each_rank:
                model.zero_grad()
        if sums_each_rank:
            for weight, first, second in zip(weights, *sums, strict=True):
                weight.grad = None if first is None else (first + second).to(weight.dtype)
        program.update(model, optimizer, keeps_gradients=False)
    return program.bits_of(model)


@pytest.mark.parametrize("case", program.CASES, ids=lambda case: case.name)
@pytest.mark.usefixtures("numerics")
def test_two_ranks_have_the_bits_of_one_that_accumulates(of_ranks, case):
    """Padding, a frozen weight, an unused one and a shared table included."""
    torch.use_deterministic_algorithms(True)
    expected = on_one_rank(case)

    assert [found[case.name] for found in of_ranks] == [expected] * WORLD


def test_buckets_are_sent_in_the_order_of_rank_0(of_ranks):
    """Rank 1 makes its gradients in the reverse order, in every update."""
    assert of_ranks[0]["order"] == of_ranks[1]["order"]
    assert of_ranks[0]["order"]["sums"] == [3.0, 3.0, 3.0]
    # The largest parameter fills a bucket; the last bucket holds one that came after a full one.
    assert of_ranks[0]["order"]["sent"] == [512, 256, 128] * 2


def test_ranks_that_train_different_parameters_are_told(of_ranks):
    """On every rank, at the first update."""
    expected = (
        "RanksDifferError: parameter 1 (shape (2,)) has a gradient on rank 0, but none on rank 1; "
        "all ranks must compute with the same parameters"
    )

    assert [found["ranks differ"] for found in of_ranks] == [expected] * WORLD


def test_a_parameter_that_one_rank_alone_trains_is_named(of_ranks):
    """Where the other one has frozen it, so that it knows nothing of its shape."""
    assert [found["one has more"] for found in of_ranks] == [
        f"RanksDifferError: parameter 1{shape} has a gradient on rank 0, but none on rank 1; all "
        "ranks must compute with the same parameters"
        for shape in (" (shape (2,))", "")
    ]


def test_a_gradient_that_is_missing_later_is_named(of_ranks):
    """Its part of the sum would hold an older one."""
    expected = (
        "RanksError: parameter 1 (shape (2,)) has no gradient, but had one in the first update; "
        "on several ranks the same parameters must get gradients in every update"
    )

    assert [found["updates differ"] for found in of_ranks] == [expected] * WORLD


def test_sums_of_bf16_are_others(of_ranks):
    """Else their case would show nothing."""
    fp32, bf16 = (program.Case("flat", sends_bf16=is_rounded).name for is_rounded in (False, True))

    assert of_ranks[0][fp32] != of_ranks[0][bf16]


@functools.cache
def steps_alone():
    """Return the steps that one rank takes, which are the same for each way."""
    return program.steps_of_translation(None)


@pytest.mark.parametrize("way", program.WAYS)
@pytest.mark.usefixtures("numerics")
def test_ranks_take_the_steps_of_translation_that_one_takes(of_ranks, way):
    """Clipped after the sum, with a batch of padding alone, and an update that both skip.

    The loss that is not finite is one of rank 1.
    """
    torch.use_deterministic_algorithms(True)
    alone = steps_alone()
    steps = [found["steps"][way] for found in of_ranks]
    reports = sorted(report for found in steps for report in found["reports"])
    padding = 5

    assert [found["bits"] for found in steps] == [alone["bits"]] * WORLD
    assert [found["skipped"] for found in steps] == [1] * WORLD
    assert [found["kept"] for found in steps] == ["in place" in way] * WORLD
    assert alone["skipped"] == 1
    assert reports[padding] == [padding, 0.0, 0]
    assert [each for each in reports if each[0] != padding] == [
        each for each in alone["reports"] if each[0] != padding
    ]


def test_all_ranks_read_the_means_of_their_losses(of_ranks):
    """Weighted; what is not finite on one rank shows, and has no part in the mean of an epoch.

    Rank 1 has thrice the loss and thrice the weight of rank 0.
    """
    means = [number * (1 + 3 * 3) / 4 for number in range(5)]
    expected = [
        repr([*means[:3], math.nan, means[4]]),
        [4.0, 4.0, 4.0, 0.0, 4.0],
        sum(means[number] for number in (0, 1, 2, 4)) / 4,
    ]

    assert [found["losses"] for found in of_ranks] == [expected] * WORLD
