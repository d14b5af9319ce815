"""Interludes: what happens between two calls, after which replays may do other than the step as written.

An epoch begins, a module changes its mode, a state dict is made or loaded. Guards compare what is there
at a call; what was changed and changed back they cannot see, nor all that came with it. So whoever
audits graphs is told, and audits each of them at its next replay.

Torch tells nobody of modes and of state dicts, so its methods are replaced as long as graphs may have
to be audited. They stay functions: torch compiles code that calls them, subclasses call them by `super`.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.step_call import is_within_a_step
from gapless.unnoticed import PatchesWhileAlive, unseen


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.unnoticed import Patches


class Interludes:
    """Those of the process."""

    num = 0


def note_interlude() -> None:
    """Let each graph be audited at its next replay: something ends that replays may depend on.

    What comes as often before each call is a part of the loop, and no interlude.
    """
    Interludes.num += 1


def note_interludes_for(one: object) -> None:
    """Note changes of modes, and state dicts that are made or loaded, as long as an object lives."""
    _audited.need(one)


def _note_modes_and_states(patches: Patches) -> None:
    patches.put(torch.nn.Module, "train", _noting(torch.nn.Module.train, _changes_mode))
    for kind in (torch.nn.Module, torch.optim.Optimizer):
        for name in ("state_dict", "load_state_dict"):
            patches.put(kind, name, _noting(getattr(kind, name)))


_audited = PatchesWhileAlive(_note_modes_and_states)


def _noting(
    method: Callable[..., Any], is_one: Callable[..., bool] = lambda *_, **__: True
) -> Callable[..., Any]:
    @wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        # What a captured step does itself is audited with it.
        if is_one(self, *args, **kwargs) and not is_within_a_step():
            note_interlude()
        with unseen:
            return method(self, *args, **kwargs)

    return noted


def _changes_mode(module: torch.nn.Module, mode: bool = True) -> bool:
    # Most loops set the mode that there is, in each epoch or call.
    return module.training is not mode
