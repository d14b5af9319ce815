"""The pass that measures: torch's profiler over a stretch of steps, read as plain data."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import (
    PREPARE_TRACE,
    ProfilerMark,
    ProfilerSettings,
    compiler_counters,
)
from gapless.doctor.seen_waits import STEP_MARK
from gapless.doctor.trace.chrome_trace import Trace, read_trace
from gapless.doctor.trace.cupti import (
    CUPTI_REMAINS,
    cupti_let_go,
    is_cupti_let_go,
    profiler_output,
    reason_in,
    running_profiler,
)
from gapless.unnoticed import FilterInFront, Patches, is_of_signal_handler, no_line_warns_anew


if TYPE_CHECKING:
    from collections.abc import Callable


class TimesPass:
    """Records what the host and the device do; a `gapless.doctor.seen_waits.Pass`.

    Start it before the pass that marks waits, and stop it after that one: the profiler itself waits for
    the device when it stops. Where the profiler cannot run, or another one runs, `notes` say why, and
    there is no trace; the script is not disturbed.

    Args:
        has_device: whether the device is to be recorded too.

    Attributes:
        notes: what could not be measured, and why; one sentence each.
        recompilations: of torch.compile while it ran.
        num_steps: that were recorded.
    """

    def __init__(self, *, has_device: bool) -> None:
        self.notes: list[str] = []
        self.recompilations = 0
        self.num_steps = 0
        self._has_device = has_device
        self._profiler: torch.profiler.profile | None = None
        self._step_ns: list[int] = []
        self._said: list[str] = []
        self._text: bytes | None = None
        self._trace: Trace | None = None
        self._give_way: Callable[[], None] | None = None
        self._graphs_before = 0

    @property
    def trace(self) -> Trace | None:
        """What was recorded, to be asked for after `stop`; None where there was no profiler."""
        text, self._text = self._text, None
        if text is not None:
            try:
                # Not strict: names of kernels may hold control characters, at which the whole trace would be lost.
                events = json.loads(text.decode(errors="replace"), strict=False)["traceEvents"]
                self._trace = read_trace(events, step_ns=self._step_ns)
            except (ValueError, KeyError, TypeError) as error:
                self.notes.append(
                    f"Times were not measured: the profiler's trace cannot be read: {error!r}."
                )
            else:
                self._note_missing_device(self._trace)
        return self._trace

    def start(self) -> None:
        """Begin to record; a step begins.

        Sync: May block the host until the driver's profiling library is ready.
        """
        other = running_profiler()
        if other:
            self.notes.append(
                f"Times were not measured: {other} is profiling this process already; run without it."
            )
            return
        try:
            # Torch 2.11 warns of this whenever a profiler starts, also with one cycle: the user would see it.
            is_mute = FilterInFront("ignore", message=".*Profiler clears events")
            with cupti_let_go(), profiler_output(self._said), is_mute, no_line_warns_anew():
                self._profiler = self._new_profiler()
                self._profiler.start()
        except Exception as error:
            self._profiler = None
            if is_of_signal_handler(error):
                raise
            self.notes.append(f"Times were not measured: torch's profiler cannot start: {error}")
            return
        self._graphs_before = _num_compiled()
        self._give_way = _before_another_starts(self._profiler, self._abandon)
        self._mark()

    def next_step(self) -> None:
        """Note that one step has ended and the next begins."""
        if self._profiler is not None:
            self.num_steps += 1
            self._mark()

    def stop(self) -> None:
        """End; the last step has ended.

        Sync: Blocks the host until the device is done.
        """
        if self._profiler is None:
            return
        self.num_steps += 1
        self._mark()
        self._stop(keep=True)

    def _new_profiler(self) -> torch.profiler.profile:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._has_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        settings = ProfilerSettings(enable_cuda_sync_events=True, profile_all_threads=True)
        return torch.profiler.profile(activities=activities, experimental_config=settings)

    def _mark(self) -> None:
        self._step_ns.append(time.perf_counter_ns())
        with ProfilerMark(STEP_MARK):
            pass

    def _abandon(self) -> None:
        """Stop for a profiler of the script, since torch runs one at a time."""
        self.notes.append(
            "Times were not measured: the script began to profile itself with torch.profiler."
        )
        self._stop(keep=False)

    def _stop(self, *, keep: bool) -> None:
        profiler, self._profiler = self._profiler, None
        if self._give_way is not None:
            self._give_way()
            self._give_way = None
        if profiler is None:
            return
        if self._has_device and not is_cupti_let_go():
            self.notes.append(CUPTI_REMAINS)
        self.recompilations = max(0, _num_compiled() - self._graphs_before)
        try:
            with profiler_output(self._said), tempfile.TemporaryDirectory() as folder:
                with cupti_let_go():
                    profiler.stop()
                if keep:
                    path = Path(folder) / "trace.json"
                    profiler.export_chrome_trace(str(path))
                    self._text = path.read_bytes()
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            self.notes.append(f"Times were not measured: torch's profiler failed: {error}")

    def _note_missing_device(self, trace: Trace) -> None:
        if not self._has_device or trace.works:
            return
        reason = reason_in(self._said) or "the driver's profiling library, CUPTI, gave none"
        self.notes.append(f"Times of the device were not measured: {reason}.")


def _num_compiled() -> int:
    """Return how many graphs torch.compile has compiled so far; 0 where it was not used."""
    return int(compiler_counters()["stats"]["unique_graphs"])


def _before_another_starts(
    own: torch.profiler.profile, give_way: Callable[[], None]
) -> Callable[[], None] | None:
    """Call `give_way` before another profiler of torch starts; return what undoes this.

    Torch runs one profiler at a time and does not refuse a second one: the first loses its events.
    """
    if not PREPARE_TRACE.is_there:
        return None
    original, patches = PREPARE_TRACE.value, Patches()

    def prepare_trace(self: Any) -> Any:
        if self is not own.profiler:
            give_way()
        return original(self)

    patches.put(*PREPARE_TRACE, prepare_trace)
    return patches.take_out
