"""The benchmark of prefetch runs everywhere, and keeps every figure."""

from __future__ import annotations

import json

import torch

from benchmarks import prefetch_time


CPU = torch.device("cpu")


def test_every_case_is_timed_with_and_without_prefetch(capsys):
    """Each case is taken from a list and from a generator, and shown in a line."""
    found = prefetch_time.host_times(CPU, rounds=1, count=4)

    assert {row["loader"] for row in found} == {"list", "generator"}
    assert len(found) == len(capsys.readouterr().out.splitlines()) == 10
    for row in found:
        assert row["to host us"]["median"] > 0
        assert row["prefetch total us"]["median"] >= row["prefetch host us"]["median"] > 0


def test_figures_are_added_to_those_before(tmp_path):
    """A table can grow over several runs; each row says where it was measured."""
    path = tmp_path / "figures.json"
    prefetch_time.keep(path, {"commit": "a"}, [{"case": "one"}])
    prefetch_time.keep(path, {"commit": "b"}, [{"case": "two"}])

    assert json.loads(path.read_text()) == [
        {"commit": "a", "case": "one"},
        {"commit": "b", "case": "two"},
    ]


def test_a_batch_of_any_kind_is_moved_by_hand():
    """Dicts stay dicts, and other batches become tuples."""
    x = torch.ones(2)

    assert list(prefetch_time.moved([{"x": x}, [x, x]], CPU)) == [{"x": x}, (x, x)]
