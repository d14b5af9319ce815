"""The state of the device and of random numbers: kept, and put back where it was."""

from __future__ import annotations

import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.proof.fingerprints import Fingerprints
from gapless.graphs.proof.packing import chunks_of, regions_of


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.device.base import Device
    from gapless.graphs.proof.packing import Chunk


class DeviceState:
    """The values of tensors on a device, which can be kept, put back and compared.

    Each byte is kept once, in whatever memory it lies: views, tensors that share a storage, weights
    that require gradients. It is put back into the same memory, and autograd's counters of versions
    do not move.

    Args:
        tensors: on the device. Their memory is held.
        names: of the tensors, as many, for texts.
        generators: of random numbers that belong to the state, beside those of `RandomStates`.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        device: Device,
        *,
        names: Iterable[str] = (),
        generators: Iterable[Any] = (),
    ) -> None:
        self.random = RandomStates(device, generators)
        self._device = device
        self.chunks = chunks_of(regions_of(tensors, names))
        self.num_bytes = sum(chunk.num_bytes for chunk in self.chunks)
        self._copies: list[torch.Tensor] = []
        self._random: dict[str, Any] = {}
        self.is_saved = False
        self._fingerprints: Fingerprints | None = None

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def save(self) -> None:
        """Keep what there is now.

        Raises:
            torch.OutOfMemoryError: the device has no memory for the copy; nothing is kept.
        """
        copies = [self._device.device_buffer(chunk.num_bytes) for chunk in self.chunks]
        for chunk, copy in zip(self.chunks, copies, strict=True):
            chunk.copy_out(copy)
        self._copies = copies
        self._random = self.random.read()
        self.is_saved = True

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def restore(self) -> None:
        """Put back what was kept, into the same memory."""
        for chunk, copy in zip(self.chunks, self._copies, strict=True):
            chunk.copy_back(copy)
        self.random.write(self._random)

    def forget(self) -> None:
        """Let go of the copy and of the memory to compare with."""
        self._copies, self.is_saved = [], False
        self._fingerprints = None
        for chunk in self.chunks:
            chunk.forget()

    def checksum(self, others: Iterable[Chunk] = ()) -> torch.Tensor:
        """Return the fingerprint of what there is now: int64 on the device, a row for each piece.

        See `gapless.graphs.proof.fingerprints`.
        """
        chunks = [*self.chunks, *others]
        num_rows = max((chunk.num_rows for chunk in chunks), default=0)
        if self._fingerprints is None or self._fingerprints.num_rows < num_rows:
            # What a run returns may take a few rows more than the memory that it changes.
            num_rows = 1 << max(num_rows - 1, 0).bit_length()
            self._fingerprints = Fingerprints(self._device, num_rows=num_rows)
        return self._fingerprints.take(chunks)


class RandomStates:
    """The states of the generators that a step may draw from: host memory, all of them.

    They are the device's and torch's on the host, Python's `random`, numpy's if it is imported, and
    further generators.

    Args:
        device: whose generator is one of them.
        generators: of torch, numpy or `random`.
        of_graphs: leave out those on the host, from which no graph draws, if the device has one of its own.
    """

    def __init__(
        self, device: Device, generators: Iterable[Any] = (), *, of_graphs: bool = False
    ) -> None:
        self._device = device
        self._generators = list({id(generator): generator for generator in generators}.values())
        self._of_graphs = of_graphs

    def read(self) -> dict[str, Any]:
        """Return the states now, by what they are the states of."""
        found: dict[str, Any] = {}
        own = self._device.random_state()
        if own is not None:
            found[_DEVICES] = own
        if own is None or not self._of_graphs:
            found[_TORCHS] = torch.get_rng_state()
        if not self._of_graphs:
            found[_PYTHONS] = random.getstate()
            if "numpy" in sys.modules:
                found[_NUMPYS] = sys.modules["numpy"].random.get_state()
        for number, generator in enumerate(self._generators, start=1):
            found[f"the random numbers of generator {number}"] = _state_of(generator)
        return found

    def write(self, states: dict[str, Any]) -> None:
        """Put back what `read` returned."""
        left = dict(states)
        for name, setter in (
            (_DEVICES, self._device.set_random_state),
            (_TORCHS, torch.set_rng_state),
            (_PYTHONS, random.setstate),
            (_NUMPYS, lambda state: sys.modules["numpy"].random.set_state(state)),
        ):
            if name in left:
                setter(left.pop(name))
        for generator, state in zip(self._generators, left.values(), strict=True):
            set_state_of(generator, state)


_DEVICES, _TORCHS = "the device's random numbers", "torch's random numbers on the host"
_PYTHONS, _NUMPYS = "Python's random numbers", "numpy's random numbers"


def unlike(states: dict[str, Any], others: dict[str, Any]) -> list[str]:
    """Return what two readings of `RandomStates` differ in."""
    return [name for name, state in states.items() if not _is_equal(state, others.get(name))]


def _is_equal(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(state, other)
    return pickle.dumps(state) == pickle.dumps(other)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None)  # numpy's
    return generator.get_state() if bits is None else bits.state


def set_state_of(generator: Any, state: Any) -> None:
    """Put a generator back, as `RandomStates` does."""
    if isinstance(generator, torch.Generator):
        is_host = generator.device.type == "cpu"
        # On a GPU through another one that shares the state, as the device's own is restored.
        (generator if is_host else generator.graphsafe_get_state()).set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
