"""Captures on NVIDIA GPUs: CUDA graphs, and the calls between them."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.capture_edges import check_may_cut
from gapless.device.torch_private import end_allocation_to_pool, release_pool


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Torch warns of a graph without work; between two cuts there may be none.
_EMPTY = "The CUDA Graph is empty"


# Graphs whose capture has failed, and the pools that they were to allocate from. Torch's allocator of
# page-locked memory still counts such a capture as running (torch 2.11 to 2.13): it asks the graph
# whether a stream belongs to it, so the graph must not be freed, and no capture can begin in its pool.
_FAILED: list[torch.cuda.CUDAGraph] = []
_SPOILED_POOLS: set[Any] = set()


# Seen: one, of the thread of backward passes; the thread that captures may have one too.
_MOST_ERRORS = 4


class CudaGraph:
    """Captured work in segments, and what is called between them.

    Args:
        segments: each with whether it has any work.
        calls: one between each two segments.
        pool: of the memory of all segments.
    """

    def __init__(
        self,
        segments: Sequence[tuple[torch.cuda.CUDAGraph, bool]],
        calls: Sequence[Callable[[], object]],
        pool: Any,
    ) -> None:
        self.pool = pool
        # The pool lives as long as a segment of it, one without work included.
        self._segments = segments
        parts: list[Callable[[], object]] = []
        for number, (segment, has_work) in enumerate(segments):
            parts += [segment.replay] if has_work else []
            parts += calls[number : number + 1]
        self._parts = parts

    def replay(self) -> None:
        """Launch the segments on the current stream, with the calls between them.

        Sync: Does not block the host, unless a call does.
        """
        for part in self._parts:
            part()

    def replay_segment(self, number: int) -> None:
        """Launch one segment on the current stream.

        Sync: Does not block the host.
        """
        segment, has_work = self._segments[number]
        if has_work:
            segment.replay()


class CudaCapture:
    """A running capture, in one segment after the other.

    Args:
        device: of the stream.
        stream: which is captured.
        pool: of memory; None, or one in which a capture has failed, for a new one.
        generators: of random numbers that the work draws from, beside the device's own.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        stream: torch.cuda.Stream,
        pool: Any,
        generators: Sequence[torch.Generator],
    ) -> None:
        self._device = device
        self._stream = stream
        self._pool = _new_pool() if pool is None or pool in _SPOILED_POOLS else pool
        self._generators = generators
        self._under_way: torch.cuda.CUDAGraph | None = None
        self._segments: list[tuple[torch.cuda.CUDAGraph, bool]] = []
        self._calls: list[Callable[[], object]] = []
        self._failure: RuntimeError | None = None

    def begin(self) -> None:
        """Begin a segment.

        Raises:
            RuntimeError: CUDA or torch refuses it, or has no memory for it.
        """
        segment = self._new_graph()
        try:
            with torch.cuda.stream(self._stream):
                # "thread_local", so that a user's thread that pins memory does not end the capture.
                segment.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        except RuntimeError:
            self._recover(segment)
            raise
        self._under_way = segment

    def cut(self, call: Callable[[], object]) -> None:
        """End the segment, note what every replay has to call there, and begin the next.

        Raises:
            RuntimeError: a backward pass is running, or CUDA has invalidated the capture.
        """
        check_may_cut()
        current = torch.cuda.current_stream(self._device)
        is_fork = current != self._stream
        if is_fork:
            self._stream.wait_stream(current)
        try:
            self._end()
        except RuntimeError as error:
            self._failure = self._failure or error
            raise
        finally:
            # Also after a failure: whoever catches it goes on, and nothing of that must run.
            self.begin()
        self._calls.append(call)
        if is_fork:
            current.wait_stream(self._stream)

    def finish(self) -> CudaGraph:
        """End the last segment; return the graph.

        Raises:
            RuntimeError: CUDA has invalidated the capture, now or at a cut.
        """
        if self._failure is not None:
            self.abandon()
            raise self._failure
        self._end()
        return CudaGraph(self._segments, self._calls, self._pool)

    def abandon(self) -> None:
        """End the segment after a failure, in whatever state it is."""
        if self._under_way is not None:
            with suppress(RuntimeError):
                self._end()

    def _end(self) -> None:
        segment, self._under_way = self._under_way, None
        if segment is None:
            raise RuntimeError("the capture could not go on after a failure")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with torch.cuda.stream(self._stream):
                    segment.capture_end()
            except RuntimeError:
                self._recover(segment)
                raise
        others = [found for found in caught if not str(found.message).startswith(_EMPTY)]
        for found in others:
            warnings.warn_explicit(found.message, found.category, found.filename, found.lineno)
        self._segments.append((segment, len(others) == len(caught)))

    def _recover(self, segment: torch.cuda.CUDAGraph) -> None:
        """Restore torch's state after a segment has failed to begin or to end.

        `CUDAGraph` stops at the first error. Torch then still allocates from the capture's pool,
        and until 2.12 its random generators are in capture mode until a capture of theirs succeeds.
        """
        if _has_ended(segment):
            return
        _FAILED.append(segment)
        _SPOILED_POOLS.add(self._pool)
        # Nothing is being captured here if `capture_begin` failed before.
        with suppress(RuntimeError):
            end_allocation_to_pool(self._device.index, self._pool)
            release_pool(self._device.index, self._pool)
        self._pool = _new_pool()
        forget_errors(self._device)
        number = torch.zeros((), device=self._device)
        with torch.cuda.graph(self._new_graph(), capture_error_mode="thread_local"):
            number.add_(1)

    def _new_graph(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        return graph


def forget_errors(device: torch.device) -> None:
    """Let what has failed in a capture raise nothing in the work that comes after it.

    A thread keeps the error of a CUDA call until it is asked for, and torch asks after the next
    kernel. So a backward pass that failed in a capture, on torch's thread, would raise once more in
    the next backward pass.
    """
    for _ in range(_MOST_ERRORS):
        with suppress(RuntimeError), torch.inference_mode(mode=False), torch.enable_grad():
            weight = torch.ones((), device=device, requires_grad=True)
            torch.autograd.grad(weight * weight, weight)
            return


def _new_pool() -> Any:
    return torch.cuda.graph_pool_handle()


def _has_ended(segment: torch.cuda.CUDAGraph) -> bool:
    """Whether torch has ended the capture, so that only its instantiation failed."""
    try:
        segment.pool()
    except RuntimeError:
        return False
    return True
