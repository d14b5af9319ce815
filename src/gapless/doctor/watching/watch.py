"""Watches one run of a script, as it is asked for, from the import of torch to its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gapless.doctor.watching.seconds import Seconds
from gapless.doctor.watching.step_source import StepSource
from gapless.doctor.watching.torch_import import TorchImport
from gapless.doctor.watching.windows import Phase, Phases, SeenWindow, plan_windows, start_all
from gapless.errors import UserError
from gapless.unnoticed import is_of_signal_handler


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.doctor.seen_waits import Pass
    from gapless.doctor.watching.step_hooks import StepHooks
    from gapless.doctor.watching.variant_trials import Variant, VariantTrials
    from gapless.records.finding import Finding


# One handler of forks for all watches, since it cannot be removed: it ends the watch in a forked process.
_installed: WeakSet[StepHooks] = WeakSet()


def _take_out_of_child() -> None:
    for hooks in _installed:
        hooks.remove()


os.register_at_fork(after_in_child=_take_out_of_child)


def _passes_of(phase: Phase, *, is_exact: bool) -> Sequence[Pass]:
    """Return the passes of a phase in the order in which they are to be started."""
    if phase in ("rest", "plain"):
        return []
    from gapless.doctor.lines.backward_lines import BackwardLinesPass
    from gapless.doctor.lines.sites import SitesPass
    from gapless.doctor.lines.step_parts import StepPartsPass
    from gapless.doctor.trace.profiler import TimesPass

    if phase == "sites":
        return [SitesPass(exact=is_exact)]
    if phase == "parts":
        return [StepPartsPass()]
    if phase == "times":
        return [TimesPass(has_device=True), SitesPass(exact=is_exact, marks=True)]
    return [BackwardLinesPass()]


def _wants_backward(seen: Sequence[SeenWindow]) -> bool:
    """Whether there are waits in backward passes for which nobody knows a line."""
    from gapless.doctor.lines.backward_lines import needs_backward_lines

    return any(
        needs_backward_lines(one.waits)
        for window in seen
        for one in window.passes
        if hasattr(one, "waits")
    )


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a script is watched.

    Attributes:
        step: what a step is: "auto", "optimizer", "loader", the class of an optimizer, or the name of
            a function of the script.
        warm_up: steps before the first window.
        num_steps: of the windows of plain steps and of sites.
        stops_after: whether the script is ended when the windows are over.
        is_exact: whether torch's own callbacks are used, which stay in the process.
        variants: returns variants to be measured; called once torch is there.
        tries_all: whether all of them are measured, not only those that may mend a finding.
    """

    step: str = "auto"
    warm_up: int = 10
    num_steps: int = 20
    stops_after: bool = False
    is_exact: bool = False
    variants: Callable[[], Sequence[Variant]] | None = None
    tries_all: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of steps and no name.

        Raises:
            UserError: a setting cannot be; names it.
        """
        step: object = self.step
        if not isinstance(step, str) or not step:
            raise UserError(f"`step` names what a step is, but is {step!r}")
        for name, value, least in (("warm_up", self.warm_up, 0), ("num_steps", self.num_steps, 1)):
            if type(value) is not int or value < least:
                raise UserError(
                    f"`{name}` must be a whole number of {least} or more, but is {value!r}"
                )


class Stopped(SystemExit):
    """Ends the script because all windows are over: as `sys.exit(0)` does."""


class Watch:
    """Watches what the script does until `end`, which takes everything out again.

    Whatever goes wrong in here is kept in `problem`; the script goes on, and nothing is watched.

    Args:
        settings: of the run.
        findings_so_far: returns what has been found in the windows that are over; variants are
            chosen by that.
        on_seen: called whenever more is known: between steps, or in another thread where there are none.

    Attributes:
        source: what a step is.
        seen: the windows that are over.
        seen_seconds: what was seen where there was no step, with a second for a step.
        problem: why nothing is watched any more; empty if all is well.
        has_torch: whether the script has imported torch.
        has_gpu: whether it had used a GPU when it was watched.
        is_complete: whether all windows were over before the script ended.
        variant_trials: in which variants are measured; None if there are none.
        not_tried: names of variants that mend nothing that was found.
    """

    def __init__(
        self,
        settings: WatchSettings,
        *,
        findings_so_far: Callable[[Watch], Sequence[Finding]] = lambda _: (),
        on_seen: Callable[[Watch], None] = lambda _: None,
    ) -> None:
        self.source = StepSource(settings.step)
        self.seen: list[SeenWindow] = []
        self.problem = ""
        self.has_torch = self.has_gpu = False
        self._settings = settings
        self._findings_so_far = findings_so_far
        self._on_seen = on_seen
        self._phases: Phases | None = None
        self.seen_seconds: SeenWindow | None = None
        self._seconds: Seconds | None = None
        self._is_ended = False
        self._hooks: StepHooks | None = None
        self._chosen: object = None
        self._is_within = False
        self.is_complete = False
        self._pid = os.getpid()
        self._import: TorchImport | None = None
        self.variant_trials: VariantTrials | None = None
        self.not_tried: tuple[str, ...] = ()

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
        self._is_ended = True
        self._guarded(self._take_out)()
        if self._hooks is not None:
            self._hooks.remove()  # again, for hooks that could not be removed while they ran

    @property
    def is_in_its_process(self) -> bool:
        """Whether this is the process that is watched, and no child that it has forked."""
        return os.getpid() == self._pid

    @property
    def wants_variants(self) -> bool:
        """Whether variants are to be measured."""
        return self._settings.variants is not None

    def _torch_is_there(self) -> None:
        from gapless.device.torch_gpu import call_when_gpu_is_used
        from gapless.doctor.watching.step_hooks import StepHooks

        self.has_torch = True
        self._hooks = StepHooks(self.source, on_step=self._on_step)
        self._hooks.install()
        call_when_gpu_is_used(self._guarded(self._gpu_is_used))
        _installed.add(self._hooks)

    def _gpu_is_used(self) -> None:
        """Watch seconds from now on, until there is a step; steps without a GPU do not count."""
        self.has_gpu = True
        self._chosen = None
        if self._phases is None and not self._is_ended and self.is_in_its_process:
            self._seconds = Seconds(
                lambda: _passes_of("sites", is_exact=False)[0],
                on_problem=self._give_up,
                on_seen=self._seconds_are_seen,
            )
            self._seconds.start()

    def _seconds_are_seen(self, seen: SeenWindow) -> None:
        self.seen_seconds = seen
        self._on_seen(self)

    def _end_seconds(self) -> SeenWindow | None:
        seconds, self._seconds = self._seconds, None
        return None if seconds is None else seconds.end()

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
        if self.source.chosen != self._chosen and not self.is_complete:
            self._chosen = self.source.chosen
            if self._phases is not None:
                self._phases.end()
            self._phases = None
        if self._phases is None:
            self._end_seconds()
            self._phases = self._new_phases()
        self._phases.step_ended()
        if self._phases.is_over:
            self._try_variants()
            if self._hooks is not None and not self._is_trying and not self._settings.stops_after:
                self._hooks.remove()

    @property
    def _is_trying(self) -> bool:
        return self.variant_trials is not None and not self.variant_trials.is_over

    def _try_variants(self) -> None:
        """Begin to measure variants, or go on, at the end of a step after all windows."""
        if self._settings.variants is None or self._hooks is None:
            return
        if self.variant_trials is not None:
            num_done = len(self.variant_trials.trials)
            self.variant_trials.next_step()
            if len(self.variant_trials.trials) > num_done:
                self._on_seen(self)
            return
        from gapless.device.torch_gpu import synchronize
        from gapless.doctor.watching.variant_trials import VariantTrials, those_for

        found = self._settings.variants()
        chosen = (
            found if self._settings.tries_all else those_for(found, self._findings_so_far(self))
        )
        self.not_tried = tuple(one.name for one in found if one not in chosen)
        self.variant_trials = VariantTrials(
            chosen,
            synchronize=synchronize,
            step_ended=self._hooks.optimizer_called,
        )
        self.variant_trials.start()

    def _new_phases(self) -> Phases:
        windows = plan_windows(
            # Calls made before this was chosen as the step count as warm-up, or a short script ends unwatched.
            warm_up=max(0, self._settings.warm_up - self.source.num_earlier_calls),
            num_steps=self._settings.num_steps,
            has_times=self.has_gpu,
        )
        phases = Phases(
            windows,
            start=self._started,
            wants_backward=_wants_backward,
            on_seen=self._window_is_seen,
        )
        self.seen = phases.seen
        return phases

    def _window_is_seen(self) -> None:
        self.is_complete = self._phases is not None and self._phases.is_over
        self._on_seen(self)

    def _started(self, phase: Phase) -> Sequence[Pass]:
        """Return the passes of a phase, started."""
        passes = _passes_of(phase, is_exact=self._settings.is_exact)
        start_all(passes)
        return passes

    def _take_out(self) -> None:
        """Take everything out: what was put in last comes first."""
        self.seen_seconds = self._end_seconds()
        try:
            if self._is_trying and self.variant_trials is not None:
                self.variant_trials.stop()
            if self._phases is not None:
                self._phases.end()
        finally:
            if self._hooks is not None:
                self._hooks.remove()

    def _guarded(self, function: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            if self.problem:
                return
            try:
                function()
            except Exception as error:
                self._give_up(error)
                if is_of_signal_handler(error):
                    raise

        return call

    def _give_up(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {error}"
        try:
            self._take_out()
        except Exception as second:
            self.problem += f"; then {type(second).__name__}: {second}"
