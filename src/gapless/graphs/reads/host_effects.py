"""What functions do on the host beside their results, or read of it that no name says, with the user's line."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads import torch_readers
from gapless.graphs.reads.c_calls import LEAVE_OUT, SUSPECTS, advice_on, effect_of
from gapless.graphs.reads.code_kinds import CodeKind, kind_of, site_of


if TYPE_CHECKING:
    from types import FrameType


# Of the text of a `format`: fields such as `{0.rate}` and `{rows[0]}`.
_NAMES_ATTRIBUTES = re.compile(r"\{\w*[.\[]")

_RANDOM_OF_PYTHON = random.random.__self__  # type: ignore[attr-defined]

# Decorators and functions that stand in for the one that is called.
MOST_FRAMES_BETWEEN = 6


class HostEffects:
    """Takes note of them while a step runs.

    Attributes:
        around: frames around the run, by id.
        effects: name and site of what functions did on the host, with advice.
        forward_modes: sites of derivatives in forward mode.
        random_site: where the first random number of Python was drawn, "" if none was.
        draws_random: whether the generator that all share was used; one that is seeded each time
            ends where it began.
    """

    def __init__(self, around: dict[int, FrameType]) -> None:
        self.around = around
        self.effects: dict[tuple[str, str], str] = {}
        self.forward_modes: dict[str, None] = {}
        self.random_site = ""
        self.draws_random = False

    def __bool__(self) -> bool:
        return bool(self.effects or self.forward_modes or self.random_site)

    def note_c_call(self, frame: FrameType, function: Any) -> None:
        """Note what a function made in C does, of which most do nothing."""
        name = getattr(function, "__name__", None)
        if name in SUSPECTS:
            effect = effect_of(function)
            site = self.user_site(frame) if effect is not None else None
            if effect is not None and site is not None:
                self.effects.setdefault((effect, site), advice_on(effect))
        elif name in torch_readers.IN_C:
            read = torch_readers.shown_reader(function)
            site = self.user_site(frame) if read is not None else None
            if read is not None and site is not None:
                self.effects.setdefault((read, site), torch_readers.ADVICE)

        elif name == "format" and _names_attributes(getattr(function, "__self__", None)):
            site = self.user_site(frame)
            if site is not None:
                self.effects.setdefault(("str.format", site), "name the attribute")
        elif isinstance(getattr(function, "__self__", None), random.Random):
            self.random_site = self.random_site or self.user_site(frame) or ""
            self.draws_random |= function.__self__ is _RANDOM_OF_PYTHON and bool(self.random_site)

    def note_act(
        self,
        frame: FrameType,
        num_between: int = MOST_FRAMES_BETWEEN,
        *,
        advice: str = LEAVE_OUT,
    ) -> None:
        """Note a function of torch or of this package, if the user's code has called it."""
        owner = frame.f_locals.get("self")
        name = frame.f_code.co_name
        shown_name = f"torch.{name}" if owner is None else f"{type(owner).__name__}.{name}"
        caller = frame.f_back
        for _ in range(num_between):
            if caller is None or id(caller) in self.around:
                return
            if kind_of(caller.f_code, caller.f_globals) is CodeKind.USER:
                site = site_of(caller.f_code, caller.f_lineno)
                self.effects.setdefault((shown_name, site), advice)
                return
            caller = caller.f_back

    def note_forward_mode(self, frame: FrameType | None) -> None:
        """Note the user's line behind a derivative in forward mode."""
        while frame is not None and id(frame) not in self.around:
            if kind_of(frame.f_code, frame.f_globals) is CodeKind.USER:
                self.forward_modes.setdefault(site_of(frame.f_code, frame.f_lineno))
                return
            frame = frame.f_back
        self.forward_modes.setdefault("")

    def user_site(self, frame: FrameType | None) -> str | None:
        """Return the user's line behind a call, None if it is torch's or this package's."""
        while frame is not None and id(frame) not in self.around:
            kind = kind_of(frame.f_code, frame.f_globals)
            if kind is CodeKind.USER:
                return site_of(frame.f_code, frame.f_lineno)
            if kind is not CodeKind.LIBRARY:
                return None
            frame = frame.f_back
        return None


def _names_attributes(text: Any) -> bool:
    return type(text) is str and _NAMES_ATTRIBUTES.search(text) is not None
