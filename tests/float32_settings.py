"""Torch's settings of float32 precision, read and put back in the way that raises for no mixture."""

from __future__ import annotations

import torch


# The wider ones come first: what is not set has the precision of the wider one, at last "ieee".
_WIDER = {
    ("generic", "all"): None,
    **{(backend, "all"): ("generic", "all") for backend in ("cuda", "mkldnn")},
    **{
        (backend, operation): (backend, "all")
        for backend in ("cuda", "mkldnn")
        for operation in ("matmul", "conv", "rnn")
    },
}


def float32_settings():
    """Return the precision by backend and operation, or the only one that an old torch has."""
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    if get is None:
        return torch.get_float32_matmul_precision()
    found = {}
    for name, wider in _WIDER.items():
        own = get(*name)
        found[name] = own if own != "none" else found.get(wider, "ieee")
    return found | {"the old way": _in_the_old_way()}


def set_float32_settings(found):
    """Set what `float32_settings` has returned."""
    old = found if isinstance(found, str) else found["the old way"]
    if old is not None and old != _in_the_old_way():
        torch.set_float32_matmul_precision(old)
    if isinstance(found, str):
        return
    for name in _WIDER:
        if float32_settings()[name] != found[name]:
            torch._C._set_fp32_precision_setter(*name, found[name])


def _in_the_old_way():
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set in both ways, which do not agree
        return None
