"""The workloads that commands run under several plans: the user's own, or translation."""

from __future__ import annotations

import os
import traceback
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import typer

from gapless.compare.workload import Workload
from gapless.compare.workload_file import load_workload
from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.nmt.data.batching import BucketSampler, make_loader
from gapless.nmt.run.build import make_parts
from gapless.plans import Plan


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.compare.entrant import PlanWorkload
    from gapless.compare.workload_file import WorkloadFunction
    from gapless.device.base import Device
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Task


TOKENS = "target tokens"


def users_workload(spec: str, *, precision: str) -> WorkloadFunction:
    """Return the function that `FILE:FUNCTION` names.

    Raises:
        UserError: there is none, or a precision was asked for that only its step can use.
    """
    if precision not in ("fp32", "tf32"):
        raise UserError(
            f"precision {precision} is up to the step of a workload, which can use "
            "torch.autocast; with --workload choose fp32 or tf32"
        )
    return load_workload(spec)


def translation_workload(config: TrainConfig, task: Task, *, steps: int) -> PlanWorkload:
    """Return a function that builds what `gapless train` trains, with the batches of one epoch.

    Args:
        config: of the run; the function asks it for everything but the plan.
        task: made from it.
        steps: batches of the epoch, as far as the text gives so many.
    """

    def make(torch_device: torch.device, plan: Plan) -> Workload:
        device = find_device(torch_device)
        parts = make_parts(config, task, device=device, total_updates=steps)
        sampler = parts.loader.sampler
        assert isinstance(sampler, BucketSampler)
        sampler.set_epoch(0, max_updates=-(-steps // config.accumulate))
        workers = _num_workers(plan, device) if config.workers is None else config.workers
        return Workload(
            model=parts.model,
            optimizer=parts.step.optimizer,
            batches=make_loader(task.train, sampler, workers=workers),
            step=parts.step,
            unit=TOKENS,
        )

    return make


def _num_workers(plan: Plan, device: Device) -> int:
    # As `gapless train` has it: what the loop itself leaves free.
    busy = 1 if device.is_accelerator else torch.get_num_threads()
    return max(0, min(plan.workers, (os.cpu_count() or 1) - busy))


def in_one_process(config: TrainConfig, task: Task, *, plan: Plan, steps: int) -> WorkloadFunction:
    """Return the same for any plan, with batches that the training process makes in any case."""
    make = translation_workload(replace(config, workers=0), task, steps=steps)
    return lambda torch_device: make(torch_device, plan)


@contextmanager
def users_errors() -> Iterator[None]:
    """Say what an error of the workload means here.

    An OSError is printed as Python does: it is no full disk of ours. An exit would be taken for a
    verdict.
    """
    try:
        yield
    except SystemExit as error:
        raise UserError(
            f"the workload called sys.exit({error.code!r}) before the comparison was done, "
            "expected it to return; take the call out"
        ) from error
    except OSError as error:
        traceback.print_exception(error)
        raise typer.Exit(1) from error
    except RuntimeError as error:
        if "use_deterministic_algorithms" in str(error):
            error.add_note(
                "gapless switched deterministic algorithms on, to compare bits; with a "
                "--tolerance, such as 1e-5, it allows others."
            )
        raise
