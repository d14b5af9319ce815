"""PyTorch training loops that never make the GPU wait.

Names are loaded when first used, so that `import gapless` is quick and the pure modules never
pull in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.compare.workload import Workload as Workload
    from gapless.errors import (
        BatchError as BatchError,
        GaplessError as GaplessError,
        LossError as LossError,
        NonFiniteLossError as NonFiniteLossError,
        UserError as UserError,
    )
    from gapless.nmt.batching import Batch as Batch
    from gapless.nmt.loss import LossCompute as LossCompute
    from gapless.pipeline.epoch import run_epoch as run_epoch
    from gapless.pipeline.loop import TrainLoop as TrainLoop
    from gapless.pipeline.prefetch import prefetch as prefetch
    from gapless.pipeline.readback import DeferredLoss as DeferredLoss
    from gapless.pipeline.records import EpochResult as EpochResult, StepLoss as StepLoss
    from gapless.pipeline.standalone import capture as capture
    from gapless.pipeline.streams import StreamManager as StreamManager
    from gapless.pipeline.sync import SyncStats as SyncStats
    from gapless.plans import PLANS as PLANS, Plan as Plan

__version__ = "0.1.0"

_HOME = {
    "Batch": "gapless.nmt.batching",
    "BatchError": "gapless.errors",
    "DeferredLoss": "gapless.pipeline.readback",
    "EpochResult": "gapless.pipeline.records",
    "GaplessError": "gapless.errors",
    "LossCompute": "gapless.nmt.loss",
    "LossError": "gapless.errors",
    "NonFiniteLossError": "gapless.errors",
    "PLANS": "gapless.plans",
    "Plan": "gapless.plans",
    "StreamManager": "gapless.pipeline.streams",
    "StepLoss": "gapless.pipeline.records",
    "SyncStats": "gapless.pipeline.sync",
    "TrainLoop": "gapless.pipeline.loop",
    "UserError": "gapless.errors",
    "Workload": "gapless.compare.workload",
    "capture": "gapless.pipeline.standalone",
    "prefetch": "gapless.pipeline.prefetch",
    "run_epoch": "gapless.pipeline.epoch",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
