"""Windows of late reads in turns with a loop as written: nothing is left of them."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from gapless.device.find import find_device
from gapless.doctor.turns import Turns
from gapless.records.finding import Finding
from gapless.testing import SimulatedDevice
from gapless.trials.late_number import is_late
from gapless.trials.late_reads import LateReads
from gapless.trials.takers import teach_takers
from late_device import LateCopies, LateDevice


class Holder:
    """Keeps numbers in the ways in which scripts do."""

    def __init__(self):
        self.losses = []
        self.total = 0.0
        self.by_name = {}
        self.loss = None

    def take(self, loss):
        self.losses.append(loss.item())
        self.total += float(loss)
        self.by_name["loss"] = loss.tolist()
        self.loss = loss.detach().cpu()


def train(turns, num_steps):
    """Print and keep the numbers of each step; return what is kept."""
    holder = Holder()
    count = 0

    def add(value):
        nonlocal count
        count += value.item()

    turns.start()
    for step in range(num_steps):
        loss = torch.tensor(1.0) / (step + 1)
        holder.take(loss)
        add(torch.tensor(step))
        print(f"step {step} {holder.losses[-1]:.4f} {count}")
        turns.next_step()
    turns.stop()
    return holder, count


def turns_of(*variants):
    return Turns(
        variants,
        synchronize=lambda: None,
        step_ended=lambda optimizer: None,
        num_windows=3,
        num_steps=5,
        least_s=0.0,
    )


def test_the_script_finds_plain_numbers_afterwards(capsys):
    """What is printed and kept is that of the loop as written; no late number is left anywhere."""
    expected, expected_count = train(turns_of(), 50)
    expected_text = capsys.readouterr().out

    with_variant = turns_of(LateReads(LateCopies(seed=3, eagerness=0.01)))
    found, count = train(with_variant, 50)

    (trial,) = with_variant.trials
    assert capsys.readouterr().out == expected_text
    assert (found.losses, found.total, count) == (expected.losses, expected.total, expected_count)
    assert found.by_name == expected.by_name
    assert torch.equal(found.loss, expected.loss)
    assert type(found.loss) is torch.Tensor
    assert {type(each) for each in (*found.losses, found.total, found.by_name["loss"])} == {float}
    assert type(count) is int
    assert not [each for each in gc.get_objects() if is_late(each)]
    assert trial.refusal == ""
    assert trial.details[0].endswith("reads could be late.")


def test_everything_is_put_back():
    """Torch, the outputs, logging and the script's names are as they were."""
    places = [
        *[(torch.Tensor, name) for name in ("item", "cpu", "tolist", "__float__", "__bool__")],
        *[(torch, name) for name in ("tensor", "as_tensor")],
        (sys.stdout, "write"),
        (sys.stderr, "flush"),
        (logging.Logger, "handle"),
        (subprocess.Popen, "__init__"),
        (os, "fork"),
        (json.JSONEncoder, "iterencode"),
    ]
    before = [vars(holder).get(name) for holder, name in places]

    train(turns_of(LateReads(LateCopies(seed=3, eagerness=0.01))), 50)

    assert [vars(holder).get(name) for holder, name in places] == before
    assert "float" not in globals()


class NoMemory(LateCopies):
    """Has page-locked memory for nothing."""

    def copy(self, target, source):
        raise RuntimeError("out of memory")


def test_a_script_goes_on_if_its_numbers_cannot_come_late():
    """Reads are as written from then on, and the trial says why."""
    turns = turns_of(LateReads(NoMemory()))

    found, count = train(turns, 50)

    assert (found.losses[0], found.loss, count) == (1.0, torch.tensor(1.0) / 50, sum(range(50)))
    (trial,) = turns.trials
    assert trial.steps_per_second is None
    assert trial.refusal == "a number could not be copied late: RuntimeError: out of memory"


def test_a_cpu_does_not_wait_for_itself():
    """Without an accelerator no read waits, and the variant says so at once."""
    assert "no accelerator" in LateReads(find_device("cpu")).refusal


@pytest.mark.parametrize(
    ("code", "is_for"), [("GAP001", True), ("GAP003", True), ("GAP016", False)]
)
def test_it_is_for_scripts_that_read(code, is_for):
    """Findings of reads and of copies to the host ask for it."""
    finding = Finding(code=code, site=None, call="", per_step=1, cause="", mend="")

    assert LateReads(LateDevice()).is_for([finding]) is is_for


class Asks(torch.Tensor):
    """Notes which methods it is told of."""

    told: ClassVar[list[object]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.told.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_script_finds_torchs_own_methods_in_a_window():
    """Classes show them, subclasses are told of them, and no traceback has a line of ours."""
    item, cpu = torch.Tensor.item, torch.Tensor.cpu
    late = LateReads(LateCopies())
    late.start(lambda _: None)
    try:
        x = torch.ones(()).as_subclass(Asks)
        Asks.told.clear()
        x.item()
        assert Asks.told == [item]
        assert (torch.Tensor.item, torch.Tensor.cpu) == (item, cpu)
        with pytest.raises(RuntimeError) as raised:
            torch.ones(2).item()
        with pytest.raises(TypeError, match="takes no arguments"):
            torch.ones(()).item(1)
    finally:
        late.stop()
        late.close()

    assert len(raised.traceback) == 1


@pytest.mark.parametrize("name", ["tensor", "as_tensor", "asarray"])
def test_a_wait_is_of_the_scripts_line_where_a_function_stands_in(name):
    """Functions that take late numbers may stay after a trial; no wait is said to be theirs."""
    takers = teach_takers()
    try:
        with SimulatedDevice() as device:
            number = device.device_buffer(4).view(torch.float32).fill_(3.0)[0]
            getattr(torch, name)([number])  # waits
            sites = {site for _, site in device.waits}
    finally:
        takers.take_out()

    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# waits")
    )
    assert sites == {f"test_late_windows.py:{line}"}


def test_a_compiled_function_that_makes_tensors_stays_whole():
    """Compiled before the window or in it."""

    @torch.compile(backend="eager", fullgraph=True)
    def before(x):
        return x * torch.tensor(2.0) + torch.as_tensor(1.0)

    @torch.compile(backend="eager", fullgraph=True)
    def within(x):
        return x.new_tensor([1.0]) * torch.tensor(2.0)

    before(torch.ones(2))
    late = LateReads(LateCopies())
    late.start(lambda _: None)
    try:
        found = before(torch.ones(3)).sum() + within(torch.ones(3)).sum()
    finally:
        late.stop()
        late.close()
        torch._dynamo.reset()

    assert found == 11
