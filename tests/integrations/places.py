"""Where the loop of a framework runs: a CPU, the simulated device or a GPU, with gapless or without.

A place tells the framework which device it has, and captures what the framework trains. In the
reference it captures nothing. Tensors of the simulated device are the CPU's, so frameworks run with
their settings for a CPU there, on the device `cpu:1`.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

import gapless
from hazards import captured_harness
from hazards.captured_harness import refusals_of
from hazards.harness import CPU, GPU, SIMULATED


class IntegrationMissingError(AssertionError):
    """The product has no such integration yet."""


def integration(module, name):
    """Return what `gapless.integrations.MODULE` calls by this name.

    Raises:
        IntegrationMissingError: there is no such module or name.
    """
    path = f"gapless.integrations.{module}"
    try:
        return getattr(importlib.import_module(path), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise IntegrationMissingError(f"`from {path} import {name}` fails: {error}") from error


class _Integrates:
    """What a place of `captured_harness.py` gets for the loops of frameworks.

    Attributes:
        is_plain: whether this is the reference, which gapless does not touch.
        folder: where the loop may write; a new one for each run.
        calls: in a reference, how often each watched object trained, by name.
    """

    def __init__(self, *, is_plain, options=None, **settings):
        super().__init__(is_plain=is_plain, waits=False, **settings)
        self.calls, self._options = Counter(), options or {}
        self._called, self._alive, self._watched, self._hooks = Counter(), {}, {}, []
        self._callbacks = []

    def __enter__(self):
        entered = super().__enter__()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(self.torch_device)
        if self.is_plain:
            self._hooks = [
                register_module_forward_pre_hook(self._count),
                register_optimizer_step_pre_hook(self._count),
            ]
        return entered

    def __exit__(self, *failure):
        for hook in self._hooks:
            hook.remove()
        self._temporary.cleanup()
        return super().__exit__(*failure)

    @property
    def is_gpu(self):
        return self.kind == GPU

    # ---------------------------------------------------------------------- what users write

    def capture_trainer(self, trainer):
        """Capture a trainer of transformers, and return it."""
        if self.is_plain:
            return trainer
        capture = integration("transformers", "capture_trainer")
        returned = capture(trainer, device=self.device, **self._options)
        assert returned is trainer, "capture_trainer returned another object"
        return trainer

    def lightning_callbacks(self):
        """Return the callbacks that gapless needs in a trainer of Lightning."""
        if self.is_plain:
            return []
        make = integration("lightning", "GaplessCallback")
        self._callbacks.append(make(device=self.device, **self._options))
        return self._callbacks[-1:]

    def capture_prepared(self, accelerator):
        """Capture what an accelerator has prepared."""
        if not self.is_plain:
            integration("accelerate", "capture_prepared")(
                accelerator, device=self.device, **self._options
            )

    # ------------------------------------------------------------------------ what is counted

    def _count(self, called, *args):
        del args
        # A compiled module is counted from outside: torch 2.11 compiles no code that would change what is counted here.
        if torch.compiler.is_compiling():
            return
        called = getattr(called, "_orig_mod", called)
        if getattr(called, "training", True):
            self._called[id(called)] += 1
            self._alive[id(called)] = called

    def counted(self, name, num=1):
        """Count trained batches of which no call of a module tells."""
        if self.is_plain:
            self.calls[name] += num

    def watch(self, name, watched, *, by_calls=True):
        """Let the verdict ask for the reports of this module or optimizer, under this name.

        Args:
            name: what its calls are counted under.
            watched: the module or the optimizer.
            by_calls: whether its calls are what trains; otherwise `counted` tells.
        """
        self._watched.setdefault(id(watched), (name, watched, []))
        if self.is_plain:
            num_calls = self._called.pop(id(watched), 0)
            self.calls[name] += num_calls if by_calls else 0
        else:
            self._note(id(watched))

    def _note(self, key):
        _, watched, known = self._watched[key]
        known[:] = _reports_of(watched) or known

    def named_reports(self):
        """Return names and reports of all that was watched, of each name's objects together."""
        if self.is_plain:
            return []
        for key in self._watched:
            self._note(key)
        of_objects = [
            (name, report) for name, _, known in self._watched.values() for report in known
        ]
        return of_objects + [("model", report) for report in self._reports_of_callbacks()]

    def _reports_of_callbacks(self):
        """Return the reports of whole steps, which a callback captures."""
        return [one.report for one in self._callbacks if hasattr(one, "report")]

    def reports(self):
        return [report for _, report in self.named_reports()]

    def names(self):
        return sorted({name for name, _, _ in self._watched.values()})

    def most_of_a_name(self):
        """Return how many objects were watched under one name, at most."""
        num_objects = Counter(name for name, _, _ in self._watched.values())
        return max([*num_objects.values(), len(self._callbacks)], default=0)

    def num_replays(self, name):
        """Return how many calls under this name were replays, or updates by operations alone.

        A module's parts count as one.
        """
        of_callbacks = self._reports_of_callbacks() if name == "model" else []
        of_objects = [
            max((report.num_replays for report in known), default=0)
            for kind, _, known in self._watched.values()
            if kind == name
        ]
        # A step that a callback has captured is told by the module's report as well.
        return sum(of_objects) or sum(report.num_replays for report in of_callbacks)

    def said(self):
        """Return all that the reports say, in one text."""
        parts = [[name, str(one), *refusals_of(one)] for name, one in self.named_reports()]
        return "\n".join(line for part in parts for line in part)


def _reports_of(watched):
    """Return the report of a captured object, and of the captured parts of a module."""
    parts = watched.modules() if isinstance(watched, torch.nn.Module) else [watched]
    return [report for report in map(_report_of, parts) if report is not None]


def _report_of(captured):
    try:
        return gapless.capture_report(captured)
    except gapless.UserError:
        return None


class CpuPlace(_Integrates, captured_harness.CpuPlace):
    """The CPU, where there is nothing to capture."""


class SimulatedPlace(_Integrates, captured_harness.SimulatedPlace):
    """The simulated device, for the reference too."""


class GpuPlace(_Integrates, captured_harness.GpuPlace):
    """The first GPU, with deterministic algorithms."""


_PLACES = {CPU: CpuPlace, SIMULATED: SimulatedPlace, GPU: GpuPlace}


def place_of(kind, **settings):
    """Return a new place of this kind."""
    return _PLACES[kind](**settings)
