"""Small workloads that several tests train."""

from __future__ import annotations

import torch

from gapless.compare.ranking import make_weights
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.pipeline.step import StepLoss


CPU = find_device("cpu")


def small_workload(log=None, *, num_batches=4, unit="", shuffle=False):
    """Return a function that builds a linear model for a plan; `log` notes every step's plan."""

    def make(device, plan):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        order = torch.Generator().manual_seed(1)
        batches = torch.utils.data.DataLoader(
            torch.arange(float(4 * num_batches)).reshape(num_batches, 4),
            batch_size=1,
            shuffle=shuffle,
            generator=order,
        )

        def step(batch):
            if log is not None:
                log.append((plan.name, float(batch[0, 0])))
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return StepLoss(loss=loss, weight=3.0)

        return Workload(model=model, optimizer=optimizer, batches=batches, step=step, unit=unit)

    return make


def small_for_any_plan(device):
    """Build the small workload for whatever plan runs it."""
    return small_workload()(device, None)


def compare_settings(plans=("blocking", "gapless", "interval"), *, device=CPU, **changed):
    """Return the settings of a small comparison that times plans without comparing bits."""
    numbers = {"steps": 4, "rounds": 3, "warmup_rounds": 1, "verify_steps": 0}
    run = {name: changed.pop(name) for name in ("seed", "tolerance") if name in changed}
    seconds = changed.pop("seconds", None)
    return CompareSettings(
        run=RunSettings(device=device, **run),
        rounds=Rounds(**{**numbers, **changed}),
        plans=tuple(plans),
        weights=make_weights({}),
        seconds=seconds,
    )
