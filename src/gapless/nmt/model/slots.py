"""Memory in which sentences are searched together, and the steps of their search, replayed on a GPU.

Shape suffixes as in `incremental`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from gapless.errors import CaptureWarning
from gapless.nmt.model.hypotheses import Hypotheses
from gapless.nmt.model.incremental import Cache


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device, Graph
    from gapless.nmt.model.decode_settings import DecodeSettings
    from gapless.nmt.model.incremental import Incremental


# A step is captured after so many of its shape: one takes as long as about ten that are not replayed.
_STEPS_BEFORE_CAPTURE = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the tensors of a search.

    Attributes:
        sentences: N.
        hypotheses: K.
        source: source length S.
        positions: that steps attend to, of `room`.
        room: positions for which there is memory.
        longest: most positions of a translation, its end mark counted.
        drawn: positions for which numbers are drawn; 0 for a beam search.
    """

    sentences: int
    hypotheses: int
    source: int
    positions: int
    room: int
    longest: int
    drawn: int


def rounded_up(number: int, *, multiple: int) -> int:
    """Return the smallest multiple that is not below a number."""
    return -(-number // multiple) * multiple


def ladder(number: int, *, below: bool = False) -> int:
    """Return the smallest number not below this one, or the largest not above it, of 1, 2, 3, 4, 6, 8, 12 ..."""
    step = 1 << max(0, number.bit_length() - 2)
    return number // step * step if below else rounded_up(number, multiple=step)


class Slots:
    """The tensors of a search of one shape, which share their memory with all other shapes.

    Args:
        cache: keys and values.
        hypotheses: of all sentences.
        position: of the latest tokens, [1].
        past: that of the cache, with all room.

    Attributes:
        num_steps: of this shape, so far.
        graph: of a step; None: none is captured.
    """

    def __init__(
        self,
        cache: Cache,
        hypotheses: Hypotheses,
        *,
        position: torch.Tensor,
        past: torch.Tensor,
    ) -> None:
        self.cache = cache
        self.hypotheses = hypotheses
        self._position = position
        self._past = past
        self.num_steps = 0
        self.graph: Graph | None = None

    def start(self, *, is_beam: bool) -> None:
        """Begin to search for translations of the sources in the cache."""
        self.hypotheses.start(is_beam=is_beam)
        self._position.zero_()
        self.forget_past()

    def forget_past(self) -> None:
        """Let no hypothesis attend to any place."""
        self._past.fill_(-math.inf)

    def queue(
        self,
        model: Incremental,
        settings: DecodeSettings,
        *,
        num_alive: int | None = None,
        must_end: bool = False,
    ) -> None:
        """Queue a step.

        Args:
            model: gives the scores.
            settings: of the search.
            num_alive: hypotheses of each sentence that go on; None: all.
            must_end: whether the length limit is reached.

        Sync: Does not block the host.
        """
        cache, ids = self.cache, self.hypotheses.ids[:, :num_alive]
        of_alive = replace(cache, past=cache.past[:, :, :num_alive])
        logits = model.step(ids, self._position, of_alive)
        parents = self.hypotheses.advance(logits, self._position, settings, must_end=must_end)
        order = parents[:, None, :, None].expand_as(cache.past)
        cache.past.copy_(cache.past.gather(2, order))
        self._position.add_(1)

    def move(self, holes: torch.Tensor, others: torch.Tensor) -> None:
        """Let other sentences take the places of those that are done."""
        hypotheses, cache = self.hypotheses, self.cache
        for tensor in (
            cache.own,
            cache.past,
            cache.source,
            cache.is_source,
            hypotheses.ids,
            hypotheses.totals,
            hypotheses.ended_scores,
            hypotheses.ended_at,
            hypotheses.num_ended,
            hypotheses.is_done,
            hypotheses.numbers,
        ):
            tensor.index_copy_(0, holes, tensor.index_select(0, others))


class SlotMemory:
    """The memory of all searches of a decoder.

    A search of fewer sentences uses the front of what one of more sentences used, so a sentence
    that stays there need not be moved.

    Args:
        model: whose keys and values are kept.
        device: where.
    """

    def __init__(self, model: Incremental, device: Device) -> None:
        self._model = model
        self._device = device
        self._memory: dict[str, torch.Tensor] = {}
        self._slots: dict[Shape, Slots] = {}
        self._settings: DecodeSettings | None = None
        self._graph: Graph | None = None
        self._captures = device.is_accelerator

    def step(self, shape: Shape, settings: DecodeSettings, *, position: int) -> None:
        """Queue the next step of a search.

        Args:
            shape: of it.
            settings: of it.
            position: of the latest tokens, counted from 0.

        Sync: Does not block the host, but for a capture.
        """
        if settings != self._settings:
            # They are part of what is captured.
            self.forget_graphs()
            self._settings = settings
        slots = self.slots(shape)
        if position == shape.longest - 1:
            slots.queue(self._model, settings, must_end=True)
        elif (
            position == 0
            and settings.sampling is None
            and shape.hypotheses < self._model.vocab // 2
        ):
            # All hypotheses would be the same.
            slots.queue(self._model, settings, num_alive=1)
        elif self._captures:
            self._replay(slots, partial(slots.queue, self._model, settings))
        else:
            slots.queue(self._model, settings)

    def _replay(self, slots: Slots, work: Callable[[], None]) -> None:
        """Queue a step, from a graph if its shape has come often."""
        if slots.graph is None and slots.num_steps >= _STEPS_BEFORE_CAPTURE:
            try:
                # Steps run one after the other, and leave nothing in the memory of a graph.
                self._graph = self._device.capture(lambda _: work(), like=self._graph)
                slots.graph = self._graph
            except RuntimeError as error:
                self._captures = False
                text = f"steps of the search are not captured, and take longer: {error}"
                warnings.warn(text, CaptureWarning, stacklevel=2)
        slots.num_steps += 1
        if slots.graph is None:
            work()
        else:
            slots.graph.replay()

    def forget_graphs(self) -> None:
        """Capture all steps anew: the weights that they read have moved."""
        self._slots.clear()
        self._graph = None

    def slots(self, shape: Shape) -> Slots:
        """Return the tensors of a shape; what earlier shapes left there is finite."""
        found = self._slots.get(shape)
        if found is None:
            found = self._view(shape)
            if not self._captures:
                # Without graphs only the shape under way counts, and a CPU has a new one every few steps.
                self._slots.clear()
            self._slots[shape] = found
        return found

    def widen(self, shape: Shape, *, room: int) -> Shape:
        """Return the shape with room for more positions; what its tensors hold is moved there.

        Sync: Does not block the host.
        """
        before = self.slots(shape).cache
        own, past = before.own.clone(), before.past.clone()
        del before
        wide = replace(shape, room=room)
        after = self.slots(wide)
        after.forget_past()
        after.cache.own[..., : own.shape[-2], :].copy_(own)
        after.cache.past[..., : past.shape[-1]].copy_(past)
        return wide

    def _view(self, shape: Shape) -> Slots:
        model, dtype, integer = self._model, self._model.dtype, torch.long
        count, beam = shape.sentences, shape.hypotheses
        of_layers = (count, model.num_layers, 2, model.heads)
        places, room = shape.positions * beam, shape.room * beam
        own = self._take("own", dtype, *of_layers, room, model.width)
        past = self._take("past", dtype, count, 1, beam, room)
        take, each = self._take, (count, beam)
        return Slots(
            Cache(
                own=own[..., :places, :],
                past=past[..., :places],
                source=take("source", dtype, *of_layers, shape.source, model.width),
                is_source=take("is_source", dtype, count, 1, 1, shape.source),
            ),
            Hypotheses(
                ids=take("ids", integer, *each),
                totals=take("totals", torch.float32, *each),
                ended_scores=take("ended_scores", torch.float32, *each),
                ended_at=take("ended_at", integer, *each),
                num_ended=take("num_ended", integer, count),
                is_done=take("is_done", torch.bool, count),
                steps=take("steps", torch.int32, shape.longest, 2, *each),
                log_probs=take("log_probs", torch.float32, count * beam, model.vocab),
                numbers=take("numbers", torch.float32, *each, shape.drawn),
            ),
            position=take("position", integer, 1),
            past=past,
        )

    def _take(self, name: str, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
        numel = math.prod(sizes)
        memory = self._memory.get(name)
        if memory is None or memory.numel() < numel:
            # Graphs read and write the memory that was too small, which goes before more is taken.
            self.forget_graphs()
            del memory
            self._memory.pop(name, None)
            memory = self._memory[name] = torch.zeros(
                numel, dtype=dtype, device=self._device.torch_device
            )
        return memory[:numel].view(sizes)
