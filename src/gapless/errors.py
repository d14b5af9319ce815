"""The exceptions of gapless.

    GaplessError                  everything below
    +-- UserError                 a mistake in what was asked: one line, exit code 2
    |   +-- PlanError             a plan or a knob that does not exist or is out of range
    |   +-- DeviceError           a device or precision that is unknown or absent
    |   +-- DataError             text, pairs or vocabulary that cannot be used
    |   +-- RunFolderError        a folder that is not a run, or a run that cannot go on
    |   +-- CheckpointError       a checkpoint that is missing, damaged or of something else
    |   +-- RunLockedError        a folder that another process writes to
    |   +-- LossError             a step returned something that is no loss
    |   +-- FirstRankError        rank 0 cannot do what it does for all ranks, and says why
    +-- BatchError                a batch that holds something the pipeline cannot move
    +-- LoaderError               a worker process of the loader died, raised, or was silent
    +-- CaptureRefused            a step that was to be captured, and is not; carries the kind
    +-- ForbiddenWaitError        the host waited for the device where it must not
    +-- OutOfMemoryError          memory is short; says in which phase and what to lower
    +-- NonFiniteLossError        the loss became NaN or infinite; carries the exact step
    +-- RanksError                the processes that train together cannot go on together
        +-- PeerLostError         one of them is gone or silent: exit code 75
        +-- RankLeftError         one of them ended before all had met
        +-- RanksDifferError      they hold different weights, or differ in what must be the same

    UserWarning
    +-- CaptureWarning            a step, or some kind of its calls, runs as written
    +-- CheckpointWarning         a damaged checkpoint, instead of which the one before is used
    +-- TranslationWarning        a sentence that is too long, or a translation that is cut

Every message names the thing, what was found, what was expected and what to do. Parameters stand in
backticks, with a value where there is one, as in `device="cpu"`: the command line says --device cpu.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator


class GaplessError(Exception):
    """Base of every error that gapless raises on purpose."""


class UserError(GaplessError, ValueError):
    """A mistake of the caller; the command line prints it as one line and exits with 2."""


class PlanError(UserError):
    """A plan or one of its knobs is unknown or out of range."""


class DeviceError(UserError):
    """A device or a precision is unknown, or not present on this machine."""


class DataError(UserError):
    """Text, pairs or a vocabulary that cannot be used."""


class RunFolderError(UserError):
    """A folder is not a run, or the run in it cannot be used as asked."""


class CheckpointError(UserError):
    """A checkpoint is missing or damaged, or holds something else than was asked for."""


class RunLockedError(UserError):
    """Another process writes to the folder."""


class BatchError(GaplessError, TypeError):
    """A batch holds a value that the pipeline does not know how to move."""


class LoaderError(GaplessError, RuntimeError):
    """A worker process of the loader died, raised, or was silent for too long."""


class OutOfMemoryError(GaplessError, MemoryError):
    """Memory of the device or the host is short; the text says in which phase, and what to lower."""


class LossError(UserError):
    """What is given as a loss, or as its weight, is not one number."""


class CaptureRefused(GaplessError):  # noqa: N818  (the step itself is without error)
    """A step with `on_refusal="raise"` is not captured.

    Attributes:
        kind: of the refusal, such as "host_read"; see `gapless.graphs.refusal`.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class CaptureWarning(UserWarning):
    """A captured step, or some kind of its calls, runs as written; the text says why.

    Each captured step warns once of each reason. The results are right all the same.
    """


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and the one before it is used; the text names it and what is wrong."""


class TranslationWarning(UserWarning):
    """Not all of a sentence is translated, or a translation is cut; the text says which and why."""


class ForbiddenWaitError(GaplessError, AssertionError):
    """The host waited for the device inside `gapless.forbid_waits`.

    Also an AssertionError, so that a test framework reports it as a failure, not as an error.
    """


class NonFiniteLossError(GaplessError, ArithmeticError):
    """The loss of one batch, or of a validation, was NaN or infinite.

    Args:
        step: number of the batch, counted from 0 over the whole run.
        loss: the value that was read.
        place: what it is the loss of, for the message; None: that batch.

    Attributes:
        step: as given; of a validation the number of batches before it.
        loss: as given.
    """

    def __init__(self, step: int, loss: float, *, place: str | None = None) -> None:
        super().__init__(
            f"the loss of {place or f'batch {step}'} is {loss}, expected a finite number; "
            "lower the learning rate, clip gradients, compute in bf16 or fp32, or skip such updates "
            'by `on_nonfinite="skip"`'
        )
        self.step = step
        self.loss = loss


class FirstRankError(UserError):
    """Rank 0 could not do what it does for all ranks; it says why."""


# The exit code of a rank that cannot go on because another is gone or silent: worth a new attempt.
EXIT_PEER_LOST = 75


class RanksError(GaplessError, RuntimeError):
    """The processes that train together cannot go on together."""


class PeerLostError(RanksError):
    """Another rank is gone or silent; the command line exits with `EXIT_PEER_LOST`."""


class RankLeftError(RanksError):
    """Another rank ended before all ranks had met.

    Attributes:
        code: that it exits with.
        is_told: whether another process says so.
    """

    def __init__(self, message: str, code: int, is_told: bool) -> None:
        super().__init__(message)
        self.code = code
        self.is_told = is_told


class RanksDifferError(RanksError):
    """Ranks hold different weights, or differ in something else that must be the same."""


@contextmanager
def noted_on(failure: BaseException) -> Iterator[None]:
    """Run a clean-up after a failure; an error in it becomes a note on the failure.

    The failure is what the user has to see. An interrupt is no error and gets through.
    """
    try:
        yield
    except Exception as second:
        failure.add_note(f"the clean-up after this failed: {type(second).__name__}: {second}")
