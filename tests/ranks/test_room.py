"""The promises of the protocol of ranks, in a loop that uses nothing else."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from ranks import product
from ranks.faults import GONE
from ranks.groups import torchrun


pytestmark = pytest.mark.xdist_group("processes: room")

LOOP = Path(__file__).with_name("room_loop.py")
VALUES = Path(__file__).with_name("room_values.py")


@pytest.fixture
def loop(fork):
    """Start ranks that run the loop with some settings."""

    def call(*, world=2, name="ranks", **settings):
        return fork(LOOP, json.dumps(settings), world=world, name=name)

    return call


def said(rank):
    """Return what a rank wrote, line by line."""
    return [json.loads(line) for line in rank.out.splitlines()]


def check_lost(ended, lost):
    """Check that all but one ended by themselves, with their code, soon, and that they said so."""
    for number, rank in enumerate(ended.ranks):
        if number != lost:
            assert rank.code == product.exit_peer_lost(), ended.text
            assert rank.seconds <= GONE, f"rank {number} took {rank.seconds:.1f} s"
            assert len(rank.errors) <= 1, ended.text
    assert ended.errors, "nobody said it"
    assert "Traceback" not in ended.err, ended.text


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_tell_each_other(fork, world):
    """Plain values of any kind and size, and tensors of any type and shape."""
    ended = fork(VALUES, world=world).end()

    ended.check_done()
    assert [rank.out for rank in ended.ranks] == ["all told\n"] * world


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_flags_are_known_at_one_update(loop, seed):
    """Raised by some ranks at some updates, they come back on all at the second exchange after."""
    draw = random.Random(seed)
    every, updates = draw.choice([1, 3, 10]), 60
    world = draw.choice([2, 3])
    raised, expected = {}, {}
    for flag in ("nonfinite", "other"):
        for _ in range(3):
            rank, update, value = (
                draw.randrange(world),
                draw.randrange(1, updates + 1),
                draw.randint(1, 9),
            )
            own = raised.setdefault(str(rank), {}).setdefault(str(update), {})
            own[flag] = max(value, own.get(flag, 0))
            first = -(-update // every) * every
            known = expected.setdefault(first + every, {})
            known[flag] = max(value, known.get(flag, 0))

    ended = loop(world=world, raised=raised, every=every, updates=updates).end()

    ended.check_done()
    lines = [said(rank) for rank in ended.ranks]
    assert all(one == lines[0] for one in lines), lines
    *known, (_, last), _ = lines[0]
    late = {}
    for update in [update for update in expected if update > updates]:
        for flag, value in expected.pop(update).items():
            late[flag] = max(value, late.get(flag, 0))
    assert known == [[update, expected[update]] for update in sorted(expected)]
    assert last == late


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_one_rank_stops_all(loop, rank):
    """Both end after the same update, with the same weights and with 0."""
    ended = loop(raised={str(rank): {"13": {"stop": 1}}}).end()

    ended.check_done()
    ours, theirs = (said(rank) for rank in ended.ranks)
    assert ours == theirs
    assert ours[0] == [30, {"stop": 1}]


def test_a_killed_rank_ends_the_others(loop, tmp_path):
    """By the code of a lost peer, in seconds, and with one line that names the rank."""
    group = loop(world=3, updates=100_000, harm={"rank": 1, "at": 20, "kind": "ends"})
    group.until((tmp_path / "ranks" / "harmed").exists, what="the harm")
    group.fault_is_now()

    check_lost(group.end(limit=30), lost=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_killed_at_any_moment(loop, seed):
    """Also in the middle of a sum or an agreement."""
    draw = random.Random(seed)
    lost = seed % 2
    group = loop(updates=100_000, seconds=0.0, every=draw.choice([1, 10]), raised={})
    group.until(lambda: group.pid(0) and group.pid(1), what="the start")
    group.until(lambda: _has_joined(group), what="the first update")
    time.sleep(draw.random())
    group.fault_is_now()
    group.send(lost, signal.SIGKILL)

    check_lost(group.end(limit=30), lost)


def _has_joined(group):
    """Whether all ranks wait for each other no more: each has the threads of a group."""
    return all(
        len(list(Path(f"/proc/{group.pid(rank)}/task").iterdir())) > 4
        for rank in range(group.world)
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_ends_the_others(loop, rank):
    """Its sockets stay open, but it sends nothing."""
    group = loop(updates=100_000)
    group.until(lambda: group.pid(0) and group.pid(1), what="the start")
    group.until(lambda: _has_joined(group), what="the first update")
    time.sleep(1.0)
    group.fault_is_now()
    group.send(rank, signal.SIGSTOP)
    group.until_gone(1 - rank, limit=30)
    group.send(rank, signal.SIGKILL)

    check_lost(group.end(), lost=rank)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "kind"), [(0, "raises"), (1, "leaves")])
def test_a_rank_that_goes_alone_ends_the_others(loop, tmp_path, rank, kind):
    """Whether it raised or thought that it was done."""
    group = loop(updates=100_000, harm={"rank": rank, "at": 20, "kind": kind})
    group.until((tmp_path / "ranks" / "harmed").exists, what="the harm")
    group.fault_is_now()

    ended = group.end(limit=30)

    assert ended.ranks[1 - rank].code == product.exit_peer_lost(), ended.text
    assert ended.err.count("Traceback (most recent call last)") == (kind == "raises"), ended.text
    assert ended.seconds <= GONE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pauses", "pauses_with_the_lock"])
def test_a_declared_pause_is_no_silence(loop, kind):
    """A rank that is busy for longer than a silent one is given, and says so before, is waited for.

    A library that holds Python's lock all the while lets no beat through.
    """
    ended = loop(harm={"rank": 0, "at": 20, "kind": kind, "seconds": 2 * GONE}).end()

    ended.check_done()
    assert said(ended.ranks[0])[-1] == said(ended.ranks[1])[-1]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_late_ranks_are_waited_for(loop, rank):
    """One comes ten seconds later, and takes ten more to leave: both end with 0."""
    ended = loop(late={str(rank): 2 * GONE}, lingers={str(rank): 2 * GONE}).end()

    ended.check_done()


def test_two_ranks_on_one_device_are_refused(loop):
    """All of them know it, before anything waits for ever."""
    ended = loop(uuid="GPU-the-same").end(limit=60)

    for rank in ended.ranks:
        assert rank.code != 0
        assert "UserError" in rank.err, rank.err
        assert "GPU" in rank.err


@pytest.mark.slow
def test_torchrun_starts_ranks_again(tmp_path):
    """The second attempt gets through, whatever the first has left in torchrun's store."""
    settings = {"harm": {"rank": 1, "at": 20, "kind": "ends"}}
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, runpy, sys\n"
        f"harm = {settings!r} if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else {{}}\n"
        f"sys.argv = ['room_loop.py', json.dumps(harm)]\n"
        f"runpy.run_path({str(LOOP)!r}, run_name='__main__')\n"
    )
    ended = torchrun(program, folder=tmp_path / "ranks", options=("--max-restarts", 1)).end()

    assert ended.code == 0, ended.text
    weights = [line for line in ended.out.splitlines() if "weights" in line]
    assert len(weights) == 2
    assert len(set(weights)) == 1
