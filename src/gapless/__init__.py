"""PyTorch training loops that never make the GPU wait.

Names are loaded when first used, so that `import gapless` is quick and the pure modules never
pull in torch. Type checkers and editors read the same names in `__init__.pyi`.
"""

from importlib import import_module


__version__ = "0.1.0"

# Where the public names are defined.
_PUBLIC = {
    "gapless.compare.compare_plans": ("compare_plans",),
    "gapless.compare.verify_plan": ("verify_plan",),
    "gapless.compare.workload": ("Workload",),
    "gapless.device.find": ("find_device",),
    "gapless.device.waits": ("allow_waits", "count_waits", "forbid_waits"),
    "gapless.errors": (
        "BatchError",
        "CaptureRefused",
        "CaptureWarning",
        "DeviceError",
        "ForbiddenWaitError",
        "GaplessError",
        "LossError",
        "NonFiniteLossError",
        "PeerLostError",
        "PlanError",
        "RanksDifferError",
        "UserError",
    ),
    "gapless.graphs.capture": ("capture",),
    "gapless.graphs.in_place.capture_in_place": ("capture_report", "release"),
    "gapless.loop.train_loop": ("TrainLoop", "run_epoch"),
    "gapless.pipeline.prefetch": ("prefetch",),
    "gapless.pipeline.losses.deferred_loss": ("DeferredLoss",),
    "gapless.pipeline.step": ("SplitStep", "StepLoss"),
    "gapless.plans": ("PLANS", "Plan"),
    "gapless.records.epoch_record": ("EpochRecord",),
    "gapless.pipeline.losses.loss_history": ("StepValues",),
    "gapless.records.wait_stats": ("WaitStats",),
}

_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
