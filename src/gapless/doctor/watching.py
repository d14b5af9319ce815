"""Watches one run of a script, from the import of torch to its end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gapless.doctor.phases import Phase, Phases, Seen, plan_windows
from gapless.doctor.step_source import StepSource
from gapless.doctor.torch_import import TorchImport


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.doctor.seen import Pass
    from gapless.doctor.steps import StepHooks
    from gapless.doctor.watch_settings import WatchSettings


def _passes_of(phase: Phase, *, is_exact: bool) -> Sequence[Pass]:
    """Return the passes of a phase in the order in which they are to be started."""
    from gapless.doctor.sites import SitesPass

    if phase == "sites":
        return [SitesPass(exact=is_exact)]
    if phase == "times":
        return [SitesPass(exact=is_exact, marks=True)]
    return []


class Stopped(SystemExit):
    """Ends the script because all windows are over: as `sys.exit(0)` does."""


class Watch:
    """Watches what the script does until `end`, which takes everything out again.

    Whatever goes wrong in here is kept in `problem`; the script goes on, and nothing is watched.

    Args:
        settings: of the run.

    Attributes:
        source: what a step is.
        seen: the windows that are over.
        problem: why nothing is watched any more; empty if all is well.
        has_torch: whether the script has imported torch.
        has_gpu: whether it had used a GPU when it was watched.
    """

    def __init__(self, settings: WatchSettings) -> None:
        self.source = StepSource(settings.step)
        self.seen: list[Seen] = []
        self.problem = ""
        self.has_torch = self.has_gpu = False
        self._settings = settings
        self._phases: Phases | None = None
        self._hooks: StepHooks | None = None
        self._chosen: object = None
        self._is_within = self._is_complete = False
        self._pid = os.getpid()
        self._import: TorchImport | None = None

    def start(self) -> None:
        """Begin to watch as soon as torch is there."""
        self._import = TorchImport(self._guarded(self._torch_is_there))

    def step(self) -> None:
        """Note that the script says itself that a step has ended."""
        if self._hooks is not None:
            self._hooks.step()

    def end(self) -> None:
        """Watch nothing any more; the script has ended."""
        if self._import is not None:
            self._import.remove()
        self._guarded(self._take_out)()

    @property
    def is_complete(self) -> bool:
        """Whether all windows were over before the script ended."""
        return self._is_complete

    @property
    def is_in_its_process(self) -> bool:
        """Whether this is the process that is watched, and no child that it has forked."""
        return os.getpid() == self._pid

    def _torch_is_there(self) -> None:
        from gapless.doctor.steps import StepHooks

        self.has_torch = True
        self._hooks = StepHooks(self.source, on_step=self._on_step)
        self._hooks.install()
        os.register_at_fork(after_in_child=self._hooks.remove)

    def _on_step(self) -> None:
        if self._is_within:
            return
        self._is_within = True
        try:
            self._guarded(self._step_ended)()
        finally:
            self._is_within = False
        is_over = self._phases is not None and self._phases.is_over
        if is_over and self._settings.stops_after and not self.problem:
            raise Stopped(0)

    def _step_ended(self) -> None:
        if self.source.chosen != self._chosen:
            self._chosen = self.source.chosen
            if self._phases is not None:
                self._phases.end()
            self._phases = None
        if self._phases is None:
            self._phases = self._new_phases()
        self._phases.step_ended()
        if self._phases.is_over:
            self._is_complete = True
            if self._hooks is not None and not self._settings.stops_after:
                self._hooks.remove()

    def _new_phases(self) -> Phases:
        from gapless.device.in_use import is_gpu_in_use

        self.has_gpu = is_gpu_in_use()
        windows = plan_windows(
            warm_up=self._settings.warm_up,
            num_steps=self._settings.num_steps,
            has_times=self.has_gpu,
        )
        phases = Phases(windows, start=self._started)
        self.seen = phases.seen
        return phases

    def _started(self, phase: Phase) -> Sequence[Pass]:
        """Return the passes of a phase, started."""
        passes = _passes_of(phase, is_exact=self._settings.is_exact)
        for one in passes:
            one.start()
        return passes

    def _take_out(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        if self._phases is not None:
            self._phases.end()

    def _guarded(self, function: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            if self.problem:
                return
            try:
                function()
            except Exception as error:
                self._give_up(error)

        return call

    def _give_up(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"
        try:
            self._take_out()
        except Exception as second:
            self.problem += f"; then {type(second).__name__}: {second}"
