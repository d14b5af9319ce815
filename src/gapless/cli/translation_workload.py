"""What `gapless train` trains, as a workload that runs under any plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.nmt.data.sampler import make_loader
from gapless.nmt.run.build import make_parts, num_workers


if TYPE_CHECKING:
    import torch

    from gapless.compare.workload import PlanWorkloadFunction, WorkloadFunction
    from gapless.nmt.run.task import Task
    from gapless.nmt.settings.config import TrainConfig
    from gapless.plans import Plan


TOKENS = "target tokens"


def translation_workload(config: TrainConfig, task: Task, *, steps: int) -> PlanWorkloadFunction:
    """Return a function that builds what `gapless train` trains, with the batches of one epoch.

    Args:
        config: of the run; the function asks it for everything but the plan.
        task: made from it.
        steps: batches of the epoch; fewer if the text has fewer.
    """

    def make(torch_device: torch.device, plan: Plan) -> Workload:
        device = find_device(torch_device)
        parts = make_parts(config, task, device=device, total_updates=steps)
        parts.sampler.set_epoch(0, max_updates=-(-steps // config.num_accumulated))
        workers = num_workers(config, plan=plan, device=device)
        return Workload(
            model=parts.step.model,
            optimizer=parts.step.optimizer,
            batches=make_loader(task.train, parts.sampler, workers=workers),
            step=parts.step,
            unit=TOKENS,
        )

    return make


def in_one_process(config: TrainConfig, task: Task, *, plan: Plan, steps: int) -> WorkloadFunction:
    """Return the same for any plan, with batches that the training process makes in any case."""
    make = translation_workload(replace(config, workers=0), task, steps=steps)
    return lambda torch_device: make(torch_device, plan)
