"""What a run touches where compiled code runs, as far as it shows.

Compiled code makes memory and launches kernels past torch's dispatcher. What it calls of torch, and what runs
beside it, is seen as always: the state of an LSTM's dropout, generators, operators that do not repeat their bits.
Of its own kernels it is known which add atomically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gapless.device.torch_private import adds_atomically, is_storage_held_once, kernel_launcher
from gapless.graphs.reads.touched import TouchWatch
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.device.base import Device


_NAME = "a compiled kernel's atomic_add"

# Memory that is held, before what is held by nobody else is let go of.
_MANY_HELD = 32


class AtomicKernels:
    """Sees whether compiled kernels that add atomically are launched in the body, on any thread.

    Attributes:
        nondeterministic: their name, if any was.
    """

    def __init__(self) -> None:
        self.nondeterministic: list[str] = []
        self._patches = Patches()

    def __enter__(self) -> Self:
        launcher = kernel_launcher()
        if launcher is not None:
            self._patches.put(launcher, "run", self._noting(launcher.run))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.take_out()

    def _noting(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        def noted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.nondeterministic and adds_atomically(kernel):
                self.nondeterministic.append(_NAME)
            return launch(kernel, *args, **kwargs)

        return noted


class BesideCompiled(TouchWatch):
    """Sees what is written of memory that others hold, and which operators and kernels may give other bits.

    What is read is not kept: most of it is made by compiled code, and would look as if it had been there before.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._kernels = AtomicKernels()

    def __enter__(self) -> Self:
        self._kernels.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._kernels.__exit__(*error)

    @property
    def nondeterministic(self) -> list[str]:
        """The operators and kernels on an accelerator that may give other bits each time."""
        return [*super().nondeterministic, *self._kernels.nondeterministic]

    def forget(self, made: set[int]) -> None:
        """Let go of memory that nobody else holds, and of storages at these addresses."""
        for key, memory in list(self._seen.items()):
            if memory.storage.data_ptr() in made or is_storage_held_once(memory.storage):
                del self._seen[key]

    def _note(
        self,
        part: torch.Tensor,
        key: int,
        storage: torch.UntypedStorage,
        is_written: bool,
        is_sure: bool,
    ) -> None:
        if is_written:
            if len(self._seen) % _MANY_HELD == _MANY_HELD - 1:
                self.forget(set())
            super()._note(part, key, storage, is_written, is_sure)
