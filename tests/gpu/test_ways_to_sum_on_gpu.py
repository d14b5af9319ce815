"""Ways to sum gradients under NCCL: captured, replayed and left in order, on one GPU and on two."""

from __future__ import annotations

import os

import pytest

from faults.processes import Launcher
from ranks.groups import fork_ranks
from ranks.test_way_to_sum import check_way
from ranks.way_program import WAYS, __file__ as PROGRAM


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


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if not way.copies])
def test_a_way_on_one_gpu(fork, name):
    """A group of one: NCCL is captured and replayed, and destroyed after the graphs."""
    ended = fork(PROGRAM, name, "cuda", world=1).end()

    check_way(ended, name, captures=True)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("name", WAYS)
def test_a_way_on_two_gpus(fork, name):
    """The bits of one process that adds up the gradients of both, captured or not."""
    ended = fork(PROGRAM, name, "cuda").end()

    check_way(ended, name, captures=True)


@pytest.mark.gpu
def test_a_held_graph_does_not_hold_up_one_rank(fork):
    """Either its group can be destroyed all the same, or stacks are written and the process ends."""
    ended = fork(PROGRAM, "buckets", "cuda", "holds", world=1).end()

    assert ended.code == 0 or "destroy_process_group" in ended.err
