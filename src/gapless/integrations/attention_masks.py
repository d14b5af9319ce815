"""Whether the batches of a model have padding, which models of transformers read from their masks.

For a mask without padding they take another kernel, with other bits. To see it they read the mask
on the host in each call; while a stream is captured they do not read, and take it to have padding.
So a graph would compute something else for batches without any. Here the question is answered
before the call, where the mask was on the host if possible, and the answer is a plain value, which
is guarded: batches with padding have one graph, batches without have another.

This file's code is looked into as a user's is (`gapless.graphs.reads.code_kinds`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import version_of
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.step_call import is_within_a_step
from gapless.integrations.framework_private import ASK_ABOUT_MASKS
from gapless.integrations.packed_positions import looking_once, note_positions
from gapless.unnoticed import Patches, PatchesWhileAlive


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Where a mask on the device keeps whether it is full, and of which version that was said.
_NOTE = "gapless_is_full"

# Where models get the lengths of the sequences in a call.
_FINDING = "find_packed_sequence_indices"

# Of the call of now: whether its masks are full, and their shape; None where nothing is known.
_known: tuple[bool, tuple[int, ...]] | None = None


def answer_before_calls(model: torch.nn.Module) -> None:
    """Let a model's calls know whether they have padding, if it is one of transformers.

    Nothing happens to a model for which this was called before.

    Sync: Does not block the host.
    """
    library: Any = sys.modules.get("transformers.modeling_utils")
    if library is None or not any(
        isinstance(part, library.PreTrainedModel) for part in model.modules()
    ):
        return
    is_known = model in _models.living
    _models.need(model)
    if not is_known:
        model.register_forward_pre_hook(_note_masks, with_kwargs=True)
        model.register_forward_hook(_forget_masks, always_call=True)


def whether_full() -> bool | None:
    """Return whether the masks of the call of now are full; None if that is not known."""
    return None if _known is None else _known[0]


def look_on_host(batch: Any) -> dict[str, bool]:
    """Return by name which masks of a batch on the host are full; nothing if it is no mapping.

    Sync: Does not block the host.
    """
    if not isinstance(batch, Mapping):
        return {}
    return {name: bool(mask.all()) for name, mask in _masks(batch) if mask.device.type == "cpu"}


def note(moved: Any, answers: Mapping[str, bool]) -> None:
    """Keep with the masks of a batch on the device which of them are full.

    Sync: Does not block the host.
    """
    for name, is_full in answers.items():
        if not moved[name].is_inference():  # those have no version
            setattr(moved[name], _NOTE, (is_full, version_of(moved[name])))


def _masks(batch: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in batch.items():
        if str(name).endswith("attention_mask") and isinstance(value, torch.Tensor):
            yield name, value


# --- calls ---


def _note_masks(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Answer before a call whether its masks are full.

    Sync: Blocks the host for each mask that nobody has looked at on the host, as the model itself
        does.
    """
    global _known
    _known = None
    if captor_of(model) is None or is_within_a_step():
        return
    named = dict(zip(_names(type(model).forward), args, strict=False)) | kwargs
    note_positions(type(model) if named.get("position_ids") is None else None)
    masks = [mask for _, mask in _masks(named) if mask.dim() == 2]
    if masks and len({mask.shape for mask in masks}) == 1:
        answers = set(map(_is_full, masks))
        if len(answers) == 1:
            _known = (answers.pop(), tuple(masks[0].shape))


def _forget_masks(*_: Any) -> None:
    global _known
    _known = None
    note_positions(None)


@cache
def _names(forward: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


def _is_full(mask: torch.Tensor) -> bool:
    is_full, version = getattr(mask, _NOTE, (False, None))
    if version is not None and version == version_of(mask):
        return bool(is_full)
    return bool(mask.all())


# --- in transformers ---


def _answer_in_transformers(patches: Patches) -> None:
    """Let transformers take what is known of masks, and decide in captures as it does elsewhere."""
    from transformers import masking_utils
    from transformers.utils import import_utils

    for name in ASK_ABOUT_MASKS:
        if hasattr(masking_utils, name):
            patches.put(masking_utils, name, _answered(getattr(masking_utils, name)))
    if hasattr(masking_utils, _FINDING):
        patches.put(masking_utils, _FINDING, looking_once(getattr(masking_utils, _FINDING)))
    captures: Any = import_utils.is_cuda_stream_capturing

    @wraps(captures)
    def is_cuda_stream_capturing() -> bool:
        return not is_within_a_step() and bool(captures())

    patches.put(import_utils, "is_cuda_stream_capturing", is_cuda_stream_capturing)


# Models whose calls are answered.
_models = PatchesWhileAlive(_answer_in_transformers)


def _answered(ask: Callable[..., bool]) -> Callable[..., bool]:
    """Return a function that asks a tensor on the host what `ask` asks a mask on the device."""

    @wraps(ask)
    def ask_host(padding_mask: Any, *lengths: Any, **options: Any) -> bool:
        known = _known
        if known is None or padding_mask is None or tuple(padding_mask.shape) != known[1]:
            return ask(padding_mask, *lengths, **options)
        is_full, shape = known
        return ask(torch.full(shape, is_full, device="cpu"), *lengths, **options)

    return ask_host
