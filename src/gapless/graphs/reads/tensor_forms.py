"""Addresses and shapes of tensors that a step names, compared many at a time."""

from __future__ import annotations

from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import tensor_guards
from gapless.graphs.reads.read_check import Change


if TYPE_CHECKING:
    from gapless.graphs.reads.guard_rows import GuardRows, Row


class TensorForms:
    """Where tensors lie, their shapes, and which are trained, as it is now.

    Args:
        tensors: with names and sites.
    """

    def __init__(self, tensors: list[tuple[torch.Tensor, str, str]]) -> None:
        self._known = [each for each in tensors if _has_address(each[0])]
        self._tensors = [tensor for tensor, _, _ in self._known]
        self._ids = frozenset(map(id, self._tensors))
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        self._forms = list(map(_form_of, self._tensors))
        self._match: Row | None = None

    def compares(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is one of these."""
        return id(tensor) in self._ids

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether all is as it was."""
        if self._tensors:
            rows.equal("addresses of tensors", torch.Tensor.data_ptr, self._tensors)
            self._match = rows.equal(
                "forms of tensors", call, [self._forms_hold], otherwise=self._forms_hold
            )

    def first_changed(self) -> Change | None:
        """Return the first change, None if there is none."""
        known = zip(self._known, self._addresses, self._forms, strict=True)
        for (tensor, name, site), address, form in known:
            if tensor.data_ptr() != address:
                return Change(name, site, "its memory", "other memory", is_memory=True)
            now = _form_of(tensor)
            for part, before, after in zip(_FORM, form, now, strict=True):
                if before != after:
                    shown_name = f"{name}.{part}"
                    is_memory = part != "requires_grad"
                    return Change(shown_name, site, str(before), str(after), is_memory)
        return None

    def _forms_hold(self) -> bool:
        """Compare the forms one by one, and let torch do so from now on."""
        if list(map(_form_of, self._tensors)) != self._forms:
            return False
        # It compares modes as well, which are no part of a form. Alignment follows from the addresses.
        match = tensor_guards(self._tensors)
        if match is not None and self._match is not None:
            self._match.columns = ([partial(match, *self._tensors)],)
        return True


_FORM = ("requires_grad", "shape", "dtype", "stride")


def _form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.requires_grad, tensor.shape, tensor.dtype, tensor.stride())


def _has_address(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
        tensor.stride()
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True
