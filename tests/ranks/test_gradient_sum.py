"""Gradients that two ranks sum have the bits of one rank that accumulates."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.errors import RanksError
from gapless.ranks.gradient_sum import FlatSum
from gapless.ranks.torch_ranks import _group_on
from ranks import nccl_program, sum_program as program


pytestmark = pytest.mark.xdist_group("processes: group")

WORLD = 2


def on_one_rank(case):
    """Return the bits of weights after one process trained on the batches of both ranks.

    With more than one batch a rank, each rank's gradients are summed first.
    """
    sums_each_rank = case.accumulate > 1
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
            sums.append([one.grad for one in weights])
            if sums_each_rank:
                model.zero_grad()
        if sums_each_rank:
            for weight, first, second in zip(weights, *sums, strict=True):
                weight.grad = None if first is None else first + second
        program.update(model, optimizer, keeps_gradients=False)
    return program.bits_of(model)


@pytest.mark.parametrize("case", program.CASES, ids=lambda case: case.name)
@pytest.mark.usefixtures("numerics")
def test_two_ranks_have_the_bits_of_one_that_accumulates(of_ranks, case):
    """Padding, a frozen weight, an unused one and a shared table included."""
    torch.use_deterministic_algorithms(True)
    expected = on_one_rank(case)

    assert [found[case.name] for found in of_ranks] == [expected] * WORLD


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


@pytest.mark.usefixtures("numerics")
def test_ranks_take_the_steps_of_translation_that_one_takes(of_ranks):
    """Clipped after the sum, with a batch of padding alone, and an update that both skip.

    The loss that is not finite is one of rank 1.
    """
    torch.use_deterministic_algorithms(True)
    alone = program.steps_of_translation(None)
    steps = [found["steps"] for found in of_ranks]
    reports = sorted(report for found in steps for report in found["reports"])
    padding = 5

    assert [found["bits"] for found in steps] == [alone["bits"]] * WORLD
    assert [found["skipped"] for found in steps] == [1] * WORLD
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


class Copies(TorchDispatchMode):
    """Counts copies."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += "copy" in str(operation)
        return operation(*args, **kwargs or {})


def test_gradients_that_are_kept_are_not_copied(monkeypatch):
    """They are made where they are summed."""
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    gradients = FlatSum(weights, group=None, agree=lambda value: [value])
    counts = []
    for _ in range(3):
        with Copies() as copies:
            sum(weight.sum() for weight in weights).backward()
            gradients.finish()
        counts.append(copies.count)
        for weight in weights:
            weight.grad.zero_()
    gradients.close()

    assert counts[0] > 0
    assert counts[1:] == [0, 0]


def test_a_sparse_gradient_is_refused(monkeypatch):
    """By the number and shape of its parameter."""
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    table = torch.nn.Embedding(4, 2, sparse=True)
    gradients = FlatSum(table.parameters(), group=None, agree=lambda value: [value])
    table(torch.tensor([1])).sum().backward()

    with pytest.raises(RanksError, match=r"parameter 0 \(shape \(4, 2\)\) is sparse"):
        gradients.finish()


class Options:
    """In the place of `ProcessGroupNCCL.Options`, which only torch for GPUs has."""

    def __init__(self):
        self._timeout = timedelta(minutes=10)


def test_nccl_has_the_limit_of_its_group_and_connects_at_once(monkeypatch):
    """Torch warns where limits differ; a capture must not be what connects."""
    given = {}
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(dist, "new_group", lambda **more: given.update(more))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: given.update(first=tensor))

    _group_on(torch.device("meta"))

    assert given["pg_options"]._timeout == given["timeout"]
    assert given["device_id"] == given["first"].device


def check_program(ended, *, captures):
    """Check that weights are those of one process that adds up, as written and captured."""
    ended.check_done()
    for rank in ended.ranks:
        found = json.loads(rank.out)
        assert found["eager"] == {"bits": found["expected"], "graphs": 0}
        assert found["captured"] == {"bits": found["expected"], "graphs": int(captures)}


def test_a_group_of_one_sums_nothing_and_parts_alone(fork):
    """The program is the one that two GPUs run."""
    ended = fork(nccl_program.__file__, "kept", world=1).end()

    check_program(ended, captures=False)
