"""What `gapless verify` and `gapless compare` run: what `gapless train` trains, or the user's own workload."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.cli.output import STANDARD_OUTPUT
from gapless.compare.workload import Workload, require_float32
from gapless.compare.workload_file import load_workload
from gapless.device.find import find_device
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Iterator

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
    # Only here: a workload of the user's own needs no extra.
    from gapless.nmt.data.sampler import make_loader
    from gapless.nmt.run.build import build_step, num_workers, sampler_of_task
    from gapless.nmt.settings.effective_settings import resolve

    def make(torch_device: torch.device, plan: Plan) -> Workload:
        device = find_device(torch_device)
        effective = resolve(config, is_accelerator=device.is_accelerator)
        step = build_step(
            config,
            task.vocabs,
            compiles=effective.compiles,
            device=device,
            total_updates=steps,
        )
        sampler = sampler_of_task(config, task, effective)
        sampler.set_epoch(0, max_updates=-(-steps // config.num_accumulated))
        workers = num_workers(config, plan=plan, device=device)
        return Workload(
            model=step.model,
            optimizer=step.optimizer,
            batches=make_loader(task.train, sampler, workers=workers),
            step=step,
            unit=TOKENS,
        )

    return make


def in_one_process(config: TrainConfig, task: Task, *, plan: Plan, steps: int) -> WorkloadFunction:
    """Return the same for any plan, with batches that the training process makes in any case."""
    make = translation_workload(replace(config, workers=0), task, steps=steps)
    return lambda torch_device: make(torch_device, plan)


def users_workload(spec: str, *, precision: str) -> WorkloadFunction:
    """Return the function that `FILE:FUNCTION` names.

    Raises:
        UserError: there is none, or a precision was asked for that only its step can use.
    """
    require_float32(precision)
    return load_workload(spec)


@contextmanager
def users_errors() -> Iterator[None]:
    """Turn errors that a workload raises while it runs into what the command says of them.

    An exit code would look like a verdict, so it becomes an error. An OSError is printed with its
    traceback: anywhere else the command takes one for a full disk of its own. A broken pipe is of
    the command's own output, which has lost its reader, as one about standard output is.

    Raises:
        UserError: the workload called `sys.exit`.
        SystemExit: an OSError has been printed; the exit code is 1.
    """
    try:
        yield
    except SystemExit as error:
        raise UserError(
            f"the workload called sys.exit({error.code!r}) before the comparison was done, "
            "expected it to return; take the call out"
        ) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            raise
        traceback.print_exception(error)
        raise SystemExit(1) from error
    except RuntimeError as error:
        if "use_deterministic_algorithms" in str(error):
            error.add_note(
                "gapless switched deterministic algorithms on, to compare bits; with a "
                "--tolerance, such as 1e-5, it allows others."
            )
        raise
