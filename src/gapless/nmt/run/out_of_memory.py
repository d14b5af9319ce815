"""Says in which phase of a run memory ran out, for what, and what to lower."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.device.memory_errors import describe_shortage, is_out_of_memory
from gapless.errors import OutOfMemoryError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Settings that take less memory when they are lower.
OF_BATCHES = "`batch_tokens` or `batch_size`, and raise `accumulate`; or lower `capture_memory`"
OF_MODELS = "`d_model`, `ffn` or the number of layers"

_OTHERS = "end other programs that hold the device's memory, or choose another `device`"


@contextmanager
def naming_phase(
    phase: str,
    *,
    lower: str = "",
    shape: Callable[[], str] = str,
    graph_bytes: Callable[[], int] = int,
) -> Iterator[None]:
    """Let an error for want of memory say what a run was doing.

    Args:
        phase: of the run.
        lower: settings that take less memory when they are lower; empty if there are none.
        shape: of the batch under way; empty if there is none.
        graph_bytes: of the device's memory that captures hold.

    Raises:
        OutOfMemoryError: memory is short.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        parts = [
            describe_shortage(error),
            *([f"for a batch of {shape()}"] if shape() else []),
            *([f"while captured graphs hold {graph_bytes():,} bytes"] if graph_bytes() else []),
        ]
        advice = f"lower {lower}" if lower else _OTHERS
        raise OutOfMemoryError(
            f"out of memory while {phase}: {', '.join(parts)}; {advice}"
        ) from error
