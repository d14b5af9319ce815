"""Sums of gradients under NCCL: captured, replayed and left in order, on one GPU and on two."""

from __future__ import annotations

import os

import pytest

from faults.processes import Launcher
from ranks.groups import fork_ranks
from ranks.nccl_program import __file__ as PROGRAM
from ranks.test_gradient_sum import check_program


@pytest.fixture(scope="module")
def launcher():
    """Starts ranks; multicast of NVLink stays off, which not all machines have."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    made = Launcher()
    yield made
    made.close()


@pytest.fixture
def fork(launcher, tmp_path):
    """Start ranks on GPUs; kill what a test leaves running."""

    def call(*arguments, world=2):
        return fork_ranks(launcher, *arguments, folder=tmp_path / "ranks", world=world)

    yield call
    launcher.stop_all()


@pytest.mark.parametrize("gradients", ["new", "kept"])
@pytest.mark.parametrize(
    "world", [pytest.param(1, marks=pytest.mark.gpu), pytest.param(2, marks=pytest.mark.multi_gpu)]
)
def test_sums_on_gpus(fork, gradients, world):
    """The bits of one process that adds up, captured or not; groups are destroyed after the graphs."""
    ended = fork(PROGRAM, gradients, "cuda", world=world).end()

    check_program(ended, captures=True)


@pytest.mark.gpu
def test_a_held_graph_does_not_hold_up_one_rank(fork):
    """Either its group can be destroyed all the same, or stacks are written and the process ends."""
    ended = fork(PROGRAM, "new", "cuda", "holds", world=1).end()

    assert ended.code == 0 or "destroy_process_group" in ended.err
