"""PyTorch training loops that never make the GPU wait.

Names are loaded when first used, so that `import gapless` is quick and the pure modules never
pull in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.compare.workload import Workload as Workload
    from gapless.device.find import find_device as find_device
    from gapless.device.waits import (
        allow_waits as allow_waits,
        count_waits as count_waits,
        forbid_waits as forbid_waits,
    )
    from gapless.errors import (
        BatchError as BatchError,
        ForbiddenWaitError as ForbiddenWaitError,
        GaplessError as GaplessError,
        LossError as LossError,
        NonFiniteLossError as NonFiniteLossError,
        UserError as UserError,
    )
    from gapless.graphs.capture import capture as capture
    from gapless.loop.epoch import run_epoch as run_epoch
    from gapless.loop.train_loop import TrainLoop as TrainLoop
    from gapless.pipeline.prefetch import prefetch as prefetch
    from gapless.pipeline.readback import DeferredLoss as DeferredLoss
    from gapless.pipeline.step import StepLoss as StepLoss
    from gapless.plans import PLANS as PLANS, Plan as Plan
    from gapless.records.epoch import EpochResult as EpochResult
    from gapless.records.wait_stats import WaitStats as WaitStats

__version__ = "0.1.0"

_HOME = {
    "BatchError": "gapless.errors",
    "DeferredLoss": "gapless.pipeline.readback",
    "EpochResult": "gapless.records.epoch",
    "ForbiddenWaitError": "gapless.errors",
    "GaplessError": "gapless.errors",
    "LossError": "gapless.errors",
    "NonFiniteLossError": "gapless.errors",
    "PLANS": "gapless.plans",
    "Plan": "gapless.plans",
    "StepLoss": "gapless.pipeline.step",
    "WaitStats": "gapless.records.wait_stats",
    "TrainLoop": "gapless.loop.train_loop",
    "UserError": "gapless.errors",
    "Workload": "gapless.compare.workload",
    "allow_waits": "gapless.device.waits",
    "capture": "gapless.graphs.capture",
    "count_waits": "gapless.device.waits",
    "find_device": "gapless.device.find",
    "forbid_waits": "gapless.device.waits",
    "prefetch": "gapless.pipeline.prefetch",
    "run_epoch": "gapless.loop.epoch",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
