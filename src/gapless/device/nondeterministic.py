"""Operators that do not give the same bits twice on a GPU.

They are those that `torch.use_deterministic_algorithms` lists (torch 2.11 to 2.13) since they add
floating-point numbers in an order that is another one each time. Not here are operators of which
only the last of several writes to one place counts, such as `scatter`: steps have few of these.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import OpOverload, schema_of


if TYPE_CHECKING:
    from collections.abc import Callable


def may_be_nondeterministic(func: Any) -> bool:
    """Return whether an operator gives other bits each time for some arguments."""
    return _known(func)[1] is not None


def nondeterministic_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the name of an operator that may give other bits each time, None for all others."""
    name, holds, places = _known(func)
    if holds is None or _is_made_deterministic():
        return None

    def argument(wanted: str) -> Any:
        place = places.get(wanted)
        if wanted in kwargs or place is None or place >= len(args):
            return kwargs.get(wanted)
        return args[place]

    return name if holds(argument) else None


def _is_made_deterministic() -> bool:
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


@cache
def _known(func: Any) -> tuple[str, Callable[[Any], bool] | None, dict[str, int]]:
    """Return an operator's name, when it is nondeterministic, and where its arguments stand."""
    if not isinstance(func, OpOverload):
        return "", None, {}
    schema = schema_of(func)
    namespace, _, name = schema.name.partition("::")
    name = name.removesuffix("_")
    holds = (_ALWAYS.get(name) or _SOMETIMES.get(name)) if namespace == "aten" else None
    places = {argument.name: place for place, argument in enumerate(schema.arguments)}
    return f"{namespace}.{name}", holds, places


def _always(_: Any) -> bool:
    return True


def _adds(argument: Any) -> bool:
    return argument("reduce") in ("sum", "mean", "prod", "add", "multiply")


_MODE_MAX = 2

_ALWAYS = dict.fromkeys(
    (
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "_ctc_loss_backward",
        "_efficient_attention_backward",
        "_flash_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention_backward",
        "_upsample_bicubic2d_aa_backward",
        "_upsample_bilinear2d_aa_backward",
        "adaptive_max_pool2d_backward",
        "avg_pool3d_backward",
        "fractional_max_pool2d_backward",
        "fractional_max_pool3d_backward",
        "grid_sampler_2d_backward",
        "grid_sampler_3d_backward",
        "histc",
        "index_add",
        "index_reduce",
        "max_pool3d_with_indices_backward",
        "nll_loss2d_forward",
        "reflection_pad1d_backward",
        "reflection_pad2d_backward",
        "reflection_pad3d_backward",
        "replication_pad1d_backward",
        "replication_pad2d_backward",
        "replication_pad3d_backward",
        "scatter_add",
        "upsample_bicubic2d_backward",
        "upsample_bilinear2d_backward",
        "upsample_linear1d_backward",
        "upsample_trilinear3d_backward",
    ),
    _always,
)

_SOMETIMES: dict[str, Callable[[Any], bool]] = {
    "bincount": lambda argument: argument("weights") is not None,
    "convolution_backward": lambda _: not torch.backends.cudnn.deterministic,
    "cumsum": lambda argument: not _is_integer(argument("self")),
    "put": lambda argument: bool(argument("accumulate")),
    "scatter": _adds,
    "scatter_reduce": _adds,
    "_embedding_bag_dense_backward": lambda argument: argument("mode") == _MODE_MAX,
}


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
