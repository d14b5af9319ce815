# The public names as type checkers and editors see them; a test compares them with `__init__.py`.

from gapless.compare.compare_plans import compare_plans as compare_plans
from gapless.compare.verify_plan import verify_plan as verify_plan
from gapless.compare.workload import Workload as Workload
from gapless.device.find import find_device as find_device
from gapless.device.waits import (
    allow_waits as allow_waits,
    count_waits as count_waits,
    forbid_waits as forbid_waits,
)
from gapless.errors import (
    BatchError as BatchError,
    CaptureRefused as CaptureRefused,
    CaptureWarning as CaptureWarning,
    DeviceError as DeviceError,
    ForbiddenWaitError as ForbiddenWaitError,
    GaplessError as GaplessError,
    LossError as LossError,
    NonFiniteLossError as NonFiniteLossError,
    PeerLostError as PeerLostError,
    PlanError as PlanError,
    RanksDifferError as RanksDifferError,
    UserError as UserError,
)
from gapless.graphs.capture import capture as capture
from gapless.graphs.in_place.capture_in_place import (
    capture_report as capture_report,
    release as release,
)
from gapless.loop.train_loop import TrainLoop as TrainLoop, run_epoch as run_epoch
from gapless.pipeline.losses.deferred_loss import DeferredLoss as DeferredLoss
from gapless.pipeline.losses.loss_history import StepValues as StepValues
from gapless.pipeline.prefetch import prefetch as prefetch
from gapless.pipeline.step import SplitStep as SplitStep, StepLoss as StepLoss
from gapless.plans import PLANS as PLANS, Plan as Plan
from gapless.records.epoch_record import EpochRecord as EpochRecord
from gapless.records.wait_stats import WaitStats as WaitStats

__version__: str
