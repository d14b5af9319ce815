"""The public API as a type checker sees it. mypy reads this file; nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import torch

import gapless
from gapless.pipeline.prefetch import Prefetcher


Pair = tuple[torch.Tensor, torch.Tensor]


def train_step(batch: Pair) -> torch.Tensor:
    x, y = batch
    return (x * y).mean()


class TwoParts:
    """A step in two parts."""

    def forward(self, batch: Pair) -> gapless.StepLoss:
        return gapless.StepLoss(loss=train_step(batch), weight=len(batch[0]))

    def backward(self, out: gapless.StepLoss) -> None:
        out.loss.backward()


def loops(loader: list[Pair], device: torch.device) -> None:
    batches = gapless.prefetch(loader, device, depth=2)
    assert_type(batches, Prefetcher[Pair])
    losses = gapless.DeferredLoss(device)
    for batch in batches:
        assert_type(batch, Pair)
        losses.add(train_step(batch), weight=3)
    assert_type(losses.mean("loss"), float)
    assert_type(losses.mean(), float | Any)  # a dict if values are given by name
    assert_type(losses.history, list[float] | Any)
    assert_type(losses.latest(), gapless.StepValues | None)
    losses.reset()


def metrics(loader: list[Pair], device: torch.device) -> None:
    def show(now: gapless.StepValues) -> None:
        assert_type(now.values["accuracy"], float)

    losses = gapless.DeferredLoss(device, every=50, on_values=show)
    for batch in loader:
        losses.add(loss=train_step(batch), accuracy=0.5, weight=batch[0].sum())
    assert_type(losses.mean("accuracy"), float)


def epochs(loader: list[Pair]) -> None:
    assert_type(gapless.run_epoch(loader, train_step, plan="gapless"), gapless.EpochRecord)
    with gapless.TrainLoop(plan=gapless.PLANS["captured"], device="auto") as loop:
        record = loop.run_epoch(loader, TwoParts())
        assert_type(record.waits, gapless.WaitStats)
        assert_type(record.waits.count, int)
        assert_type(record.gap_share, float | None)
        assert_type(loop.plan, gapless.Plan)


@gapless.capture
def captured_step(batch: Pair) -> torch.Tensor:
    return train_step(batch)


class Trainer:
    """A class with a captured method."""

    @gapless.capture(device="cuda", num_warmup=3, max_graphs=10, on_refusal="raise")
    def step(self, batch: Pair) -> torch.Tensor:
        return train_step(batch)


def captures(loader: list[Pair], model: torch.nn.Module, sgd: torch.optim.Optimizer) -> None:
    step = gapless.capture(TwoParts())
    for batch in loader:
        step(batch)
        captured_step(batch)
        Trainer().step(batch)
    assert_type(Trainer().step.report.num_graphs, int)
    assert_type(str(step.report), str)
    assert_type([refusal.site for refusal in step.report.refusals], list[str | None])
    many = gapless.capture(train_step, steps_per_launch=4, compile="dynamic")
    many(loader[:4])
    masked = gapless.capture(lambda x, y, mask=None: (x * y).mean(), device="cuda")
    masked(*loader[0], mask=None)
    step.clear()
    assert_type(gapless.capture(model, max_graphs=4), torch.nn.Module)
    assert_type(gapless.capture(sgd), torch.optim.Optimizer)
    gapless.capture(model, sgd, audit_every=100, compile=True)
    assert_type(gapless.capture_report(model).num_replays, int)
    assert_type(gapless.release(model), torch.nn.Module)
    try:
        step(loader[0])
    except gapless.CaptureRefused as refused:
        assert_type(refused.kind, str)


def waits() -> None:
    with gapless.count_waits() as seen:
        pass
    assert_type(seen.count, int)
    with gapless.forbid_waits(), gapless.allow_waits("log"):
        pass


def make_workload(device: torch.device) -> gapless.Workload:
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gapless.Workload(model=model, optimizer=optimizer, batches=[], step=train_step)


def whole_operations() -> None:
    found = gapless.verify_plan(make_workload, "captured", against="gapless", tolerance=1e-5)
    assert_type(found.holds, bool)
    assert_type(found.is_same("captured"), bool | None)
    report = gapless.compare_plans(make_workload, ["blocking", "gapless"])
    assert_type(report.holds, bool)
    assert_type(report.recommendation.plan, str | None)


def mistakes(loader: list[Pair]) -> None:
    gapless.prefetch(loader, "cpu", 3)  # type: ignore[call-arg]  # the depth is given by name
    gapless.Plan("mine")  # type: ignore[call-arg]  # so are all fields of a plan
    gapless.Plan(name="mine", graphs="sometimes")  # type: ignore[arg-type]
    gapless.verify_plan(make_workload(torch.device("cpu")))  # type: ignore[arg-type]  # no function
    gapless.capture(train_step, on_refusal="warn")  # type: ignore[call-overload]
    gapless.capture(train_step, on_refusal="stop")  # type: ignore[call-overload]
    gapless.StepLoss(loss=torch.zeros(()), report=None)  # type: ignore[call-arg]
