"""Contents that a step reads: the bytes of tensors on the host, results of caches."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.plain_values import are_same_items
from gapless.graphs.reads.read_check import Content, Shown, check_of


if TYPE_CHECKING:
    from gapless.graphs.reads.bulk_checks import BulkChecks


# What is longer is not compared.
MOST_BYTES = 1 << 20


class ContentChecks:
    """Comparisons of what is in an object, which may be written to in place.

    Args:
        checks: where they are added.
    """

    def __init__(self, checks: BulkChecks) -> None:
        self._checks = checks

    def add_tensor(self, tensor: torch.Tensor, name: str, site: str) -> None:
        """Compare the version of a tensor on the host, and its bytes."""
        self._add_version(tensor, name, site)
        self._add_content(tensor, name, site)

    def _add_version(self, tensor: torch.Tensor, name: str, site: str) -> None:
        if tensor.is_inference():
            return
        version = tensor._version
        check = check_of(
            lambda: Shown(f"its content, version {tensor._version}"),
            Shown(f"its content, version {version}"), name=name, site=site, is_memory=False,
        )  # fmt: skip
        self._checks.add(check, lambda: tensor._version == version)

    def _add_content(self, tensor: torch.Tensor, name: str, site: str) -> None:
        """Compare the bytes: writes through `.data` and numpy move no version."""
        memory = _memory_of(tensor)
        if memory is None:
            return
        address = tensor.data_ptr()
        read = lambda: Shown("its memory" if tensor.data_ptr() == address else "other memory")  # noqa: E731
        check = check_of(read, Shown("its memory"), name=name, site=site, is_memory=True)
        self._checks.add(check, lambda: tensor.data_ptr() == address)
        read_bytes = memory.tobytes
        content = read_bytes()
        check = check_of(
            lambda: Content(read_bytes()), Content(content), name=name, site=site, is_memory=False
        )
        self._checks.add(check, lambda: read_bytes() == content)

    def add_results_of(self, function: Any, name: str) -> None:
        """Compare whether a cache holds what it held: one that is cleared makes new results."""
        now = partial(_results_of, function)
        kept = now()
        read = lambda: Shown("its results" if are_same_items(now(), kept) else "other results")  # noqa: E731
        check = check_of(read, Shown("its results"), name=name, is_memory=False)
        self._checks.add(check, lambda: are_same_items(now(), kept))


def _memory_of(tensor: torch.Tensor) -> Any:
    """Return an array of the bytes of a plain tensor on the host, None of others."""
    is_plain_tensor = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain_tensor or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    if not tensor.is_contiguous() or tensor.nbytes > MOST_BYTES or tensor.is_conj():
        return None
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _results_of(function: Any) -> list[Any]:
    """Return what a cache of results holds: the ends of a long one, and how often it was asked in vain."""
    info = function.cache_info()
    tables = [part for part in gc.get_referents(function) if type(part) is dict]
    found = next((table for table in tables if table is not vars(function)), {})
    results = list(found.values())
    ends = results if len(results) <= _MOST_RESULTS else [results[0], results[-1]]
    return [info.misses, info.currsize, *ends]


# Whoever clears a cache makes all of its results anew.
_MOST_RESULTS = 100
