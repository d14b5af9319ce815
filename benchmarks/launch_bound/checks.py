"""A variant against itself without its captures: the same bits, and what it makes of changes.

A change is made once, late in a short training, behind the back of whatever is captured: all weights are
scaled in place, the rate is halved, or an attribute that the step reads gets another value. Then the
variant is `right`, if it has the bits of the same training without captures; `told`, if it raised or
warned where the unchanged training did not; or `silent`, if it went on with the old value. Nothing is
said (`-`) of a change that has no effect without captures either, as of a rate that the script sets anew.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.launch_bound.bits import Captured, capture_off, first_difference, trained
from benchmarks.launch_bound.variants import (
    AS_WRITTEN,
    CHANGES,
    EQUAL_EDITS,
    RATE,
    SAME,
    WEIGHT,
    load,
    uncaptured,
)


if TYPE_CHECKING:
    from collections.abc import Iterator


RIGHT, TOLD, SILENT, NOTHING = "right", "told", "silent", "-"

# When a change is made, as a share of the steps.
_AT = 0.75

# Class of the objects, or "" for the script itself; name; what its value is multiplied with.
ATTRIBUTES = {
    "act": ("Dropout", "p", 2.0),
    "bert": ("Dropout", "p", 2.0),
    "dcgan": ("LeakyReLU", "negative_slope", 2.0),
    "ddpm": ("Noise", "image_share", 0.9),
    "gcn": ("Citations", "edge_weight", 0.5),
    "image_amp_ema": ("BatchNorm2d", "eps", 1e3),
    "lora": ("LoRALinear", "scaling", 2.0),
    "mnist": ("Dropout", "p", 0.5),
    "molecules": ("BatchNorm1d", "eps", 1e3),
    "nanogpt": ("LayerNorm", "eps", 1e3),
    "nbeats": ("Dropout", "p", 2.0),
    "pinn": ("", "VISCOSITY", 2.0),
    "ppo": ("", "ENT_COEF", 2.0),
    "sac": ("", "GAMMA", 0.5),
    "segmentation": ("BatchNorm2d", "eps", 1e3),
    "speech": ("Dropout", "p", 2.0),
    "translation": ("Dropout", "p", 2.0),
    "vit": ("Dropout", "p", 2.0),
    "word_lm": ("Dropout", "p", 2.0),
}


@dataclass
class Training:
    """A short training: what it gave, or what it raised, and what it warned of."""

    numbers: dict[str, str]
    problem: str | None
    warned: set[str]
    num_replays: int


class Change:
    """Makes one change at a step.

    Args:
        kind: one of `CHANGES`.
        name: of the script.
        variant: of the script.
        steps: of the whole training.
    """

    def __init__(self, kind: str, name: str, variant: str, steps: int) -> None:
        self._kind, self._name, self._variant, self._at = kind, name, variant, int(steps * _AT)
        gc.collect()
        # Kept, so that what is made later cannot have the place of what was there before.
        self._before = {id(one): one for one in gc.get_objects() if _is_of_a_training(one)}

    def __call__(self, step: int) -> None:
        """Make it, if this is its step."""
        if step != self._at:
            return
        if self._kind == WEIGHT:
            with torch.no_grad():
                torch._foreach_mul_(self._weights(), 1.05)
        elif self._kind == RATE:
            self._halve_rates()
        else:
            self._scale_attribute()

    def _made(self, kind: Any) -> list[Any]:
        found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
        return [one for one in found if id(one) not in self._before]

    def _weights(self) -> list[torch.Tensor]:
        groups = [g for o in self._made(torch.optim.Optimizer) for g in o.param_groups]
        weights = [p for group in groups for p in group["params"]]
        # A script that updates by hand has no optimizer.
        modules = self._made(torch.nn.Module) if not weights else []
        weights += [p for module in modules for p in module.parameters(recurse=False)]
        return list({id(p): p for p in weights}.values())

    def _halve_rates(self) -> None:
        for optimizer in self._made(torch.optim.Optimizer):
            # Groups may share a rate that is a tensor.
            rates = {id(r): r for g in optimizer.param_groups if _is_tensor(r := g["lr"])}
            for rate in rates.values():
                rate.mul_(0.5)
            for group in optimizer.param_groups:
                if not _is_tensor(group["lr"]):
                    group["lr"] *= 0.5

    def _scale_attribute(self) -> None:
        owner, attribute, factor = ATTRIBUTES[self._name]
        if not owner:
            values = vars(load(self._name, self._variant))
            values[attribute] *= factor
            return
        for one in self._made(object):
            if type(one).__name__ == owner and hasattr(one, attribute):
                setattr(one, attribute, getattr(one, attribute) * factor)


def _is_of_a_training(one: Any) -> bool:
    kind = type(one)
    names = {owner for owner, _, _ in ATTRIBUTES.values()}
    return issubclass(kind, torch.optim.Optimizer | torch.nn.Module) or kind.__name__ in names


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def checked(name: str, variant: str, settings: dict[str, Any]) -> Iterator[dict[str, str | int]]:
    """Yield what is found of a variant, as soon as it is known: its bits, and then each change."""
    written, is_off = uncaptured(variant)
    plain = _trained(name, written, settings, is_off=is_off)
    captured = _trained(name, variant, settings)
    if variant in (AS_WRITTEN, EQUAL_EDITS):
        place = first_difference(plain.numbers, captured.numbers)
        yield {"bits": SAME if place is None else f"not reproducible: {place}"}
        return
    yield {"bits": _bits(plain, captured), "num_replays": captured.num_replays}
    for kind in CHANGES:
        changed_plain = _trained(name, written, settings, is_off=is_off, kind=kind)
        changed = _trained(name, variant, settings, kind=kind)
        yield {kind: verdict(plain, captured, changed_plain, changed)}


def _bits(plain: Training, captured: Training) -> str:
    problem = plain.problem or captured.problem
    if problem:
        return f"failed: {problem}"
    place = first_difference(plain.numbers, captured.numbers)
    return SAME if place is None else f"different: {place}"


def verdict(
    plain: Training, captured: Training, changed_plain: Training, changed: Training
) -> str:
    """Return what a variant makes of a change, from four trainings."""
    problem = plain.problem or captured.problem or changed_plain.problem
    if problem or changed_plain.numbers == plain.numbers:
        return NOTHING
    if changed.problem:
        return f"{TOLD}: {changed.problem}"
    if changed.numbers == changed_plain.numbers:
        return RIGHT
    if changed.warned - captured.warned:
        return f"{TOLD}: {min(changed.warned - captured.warned)}"
    if changed.numbers == captured.numbers or captured.numbers == plain.numbers:
        return SILENT
    # It has other bits anyway, and the change had its effect.
    return RIGHT


def _trained(
    name: str,
    variant: str,
    settings: dict[str, Any],
    *,
    is_off: bool = False,
    kind: str | None = None,
) -> Training:
    owner, attribute, _ = ATTRIBUTES[name]
    values = vars(load(name, variant))
    former = None if owner else values[attribute]

    def change(steps: int) -> Change | None:
        return None if kind is None else Change(kind, name, variant, steps)

    numbers, problem, replays = {}, None, 0
    with (
        warnings.catch_warnings(record=True) as seen,
        capture_off() if is_off else nullcontext(),
        Captured() as captured,
    ):
        warnings.simplefilter("always")
        try:
            numbers = trained(name, variant, change=change, **settings)
            replays = sum(report["num_replays"] for report in captured.reports())
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            problem = f"{type(error).__name__}: {first}"
        finally:
            if not owner:
                values[attribute] = former
    warned = {str(one.message).partition("\n")[0] for one in seen}
    return Training(
        numbers, problem, {one for one in warned if "eterministic" not in one}, replays
    )
