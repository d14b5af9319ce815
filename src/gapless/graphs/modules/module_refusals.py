"""Why a module cannot be captured where it stands: what its calls as written have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.reads.addresses import address_of, share_memory
from gapless.graphs.reads.module_parts import named_parts
from gapless.graphs.reads.value_places import HOOK_TABLES
from gapless.graphs.refusal import Refusal, asks_of_its_call
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device
    from gapless.graphs.modules.gradient_paths import GradientPaths
    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.watched import Watched
    from gapless.pipeline.tree.flatten import Tree


_PLAIN = (torch.Tensor, nn.Parameter)
_HOOKING = frozenset(
    [
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "register_multi_grad_hook",
    ]
)


# What they say of a tensor is otherwise in a replay.
_OF_THE_CALL = frozenset(["is_leaf", "grad_fn", "_version", "_base", "data_ptr"])


def gradient_outside(paths: GradientPaths) -> list[Refusal]:
    """Refuse a module whose call cannot be one node; nothing if it can."""
    if not paths.objection:
        return []
    return [
        Refusal(
            "gradient_outside",
            f"the module cannot be one node of a backward pass: {paths.objection}",
            name="its gradients",
        )
    ]


def hook_refused(text: str) -> Refusal:
    """Refuse a module with a hook."""
    return Refusal(
        "hook",
        f"{text}, which a replay would not call; set it on the captured module's outputs",
        name="a hook",
    )


def may_differentiate(site: str) -> Refusal:
    """Refuse a module whose gradients the user's code may differentiate."""
    return Refusal(
        "create_graph",
        f"{site} may run a backward pass with create_graph=True, whose gradients behind a replay would be "
        "added up in another order than as written: calls with gradients run as written; capture the whole "
        "step",
        site=site,
        name="create_graph",
    )


def keeps_unknown(name: str, site: str) -> Refusal:
    """Refuse a module that keeps something from call to call."""
    where = f"{site}: " if site else ""
    return Refusal(
        "keeps_unknown",
        f"{where}the module keeps {name} from call to call; write into it with `copy_()`, or return it "
        "and pass it as an argument",
        site=site or None,
        name=name,
    )


def hooks_within(module: nn.Module) -> list[Refusal]:
    """Refuse a module with a part that has a hook."""
    for name, part in named_parts(module):
        if part is not module and any(vars(part).get(table) for table in HOOK_TABLES):
            return [hook_refused(f"its part {name} ({type(part).__name__}) has a hook")]
    return []


def objections_to_call(watched: Watched, watch: HostWatch) -> list[Refusal]:
    """Return what no graph of both passes could repeat of a watched call."""
    found = [keeps_unknown(path.name, path.site) for path in watched.kept if path.is_plain]
    if watched.ran_backward:
        found.append(RUNS_BACKWARD)
    site = watch.site_of_name(_HOOKING)
    if site is not None:
        found.append(hook_refused(f"{site} sets a hook"))
    if watch.site_of_name(["checkpoint"]) is not None:
        found.append(CHECKPOINT)
    site = watch.site_of_name(_OF_THE_CALL)
    return found if site is None else [*found, asks_of_its_call(site)]


def objections_to_weights(
    module: nn.Module, weights: Sequence[torch.Tensor], device: Device
) -> list[Refusal]:
    """Return why no graph can give gradients to a module's weights."""
    found = hooks_within(module)
    if any(getattr(weight, table, None) for weight in weights for table in HOOK_TABLES):
        found.append(hook_refused("a weight has a hook"))
    if any(map(device.needs_copy, weights)):
        found.append(ON_HOST)
    if any(type(weight) not in _PLAIN for weight in weights):
        found.append(SUBCLASS)
    return found


def objections_to_memory(
    tree: Tree, others: Sequence[torch.Tensor], watched: Watched
) -> list[Refusal]:
    """Return what is wrong with where the arguments lie."""
    # Through `.data` they are changed without another version.
    touched = watched.touched
    if touched is not None and any(address_of(one) in watched.known for one in touched.written):
        return [CHANGES_INPUT]
    wanted = [leaf for leaf in tree.leaves if leaf.requires_grad]
    if len(wanted) > 1 and share_memory(wanted):
        return [TWICE]
    places = {address_of(other) for other in others if has_address(other)}
    if any(leaf.requires_grad and address_of(leaf) in places for leaf in tree.leaves):
        return [OWN_WEIGHT]
    return []


def puts_into_input(name: Any, site: str) -> Refusal:
    """Refuse a module that changes a container among its arguments."""
    where = f"{site}: " if site else ""
    what = "something" if name is None else repr(name)
    return Refusal(
        "changes_batch",
        f"{where}the module puts {what} into a container that it is given; return it, or change a copy",
        site=site or None,
        name="an argument",
    )


CHANGES_INPUT = Refusal(
    "changes_batch",
    "the module changes a tensor that it is given; change a copy",
    name="an argument",
)
BACKWARD_WITHIN = Refusal(
    "gradient_outside",
    "the module runs a backward pass of its own when it is called, which changes gradients; return "
    "that loss, and add it to the loop's",
    name="a backward pass within",
)
OWN_WEIGHT = Refusal(
    "gradient_outside",
    "the module is given one of its own weights, which gets gradients as both; use it within",
    name="an argument",
)
TWICE = Refusal(
    "gradient_outside",
    "two arguments share memory and need gradients, which a graph would not sum as autograd does; "
    "give the tensor once, or capture the step",
    name="an argument given twice",
    is_of_call=True,
)
RETURNS_OTHERS = Refusal(
    "result",
    "the module returns or leaves a tensor that shares memory with another one, or with what it is given; make it a clone",
    name="shared memory",
)
COPIED = Refusal(
    "weights",
    "an object that has a copy of the module's attributes, as nn.DataParallel makes for each GPU, is called: "
    "it runs as written; use DistributedDataParallel, or copy.copy()",
    name="a copy",
    is_of_call=True,
)
COMPILED_AROUND = Refusal(
    "compiled",
    "it is called within torch.compile, which compiles it as written; capture a step that calls the "
    "compiled model",
    name="torch.compile around it",
    is_of_call=True,
)
SCRIPTED = Refusal(
    "compiled",
    "the module is one of torch.jit, whose forward pass nothing can stand in for; capture a module or a "
    "step that calls it",
    name="torch.jit",
)
CHECKPOINT = Refusal(
    "checkpoint",
    "the module uses torch.utils.checkpoint, which runs a part of it again in the backward pass",
    name="checkpoint",
)
OTHER_SETTINGS = Refusal(
    "gradient_outside",
    "settings of torch are others in the backward pass than in the forward pass; set them before "
    "the loop",
    name="settings",
)
OTHER_LAYERS = Refusal(
    "gradient_outside",
    "the backward pass comes to none of the module's weights: layers in a plain list or dict use them; keep "
    "these in a ModuleList, or capture the step",
    name="its layers",
)
RUNS_BACKWARD = Refusal(
    "gradient_outside",
    "the module runs a backward pass itself, which a graph of its own passes does not hold; capture "
    "a function that calls it",
    name="a backward pass",
)
REPLACED = Refusal(
    "replaced_tensor",
    "the module uses a tensor that is another one in each call; pass it as an argument, or fill one "
    "tensor in place",
)
OTHER_WEIGHTS = Refusal(
    "gradient_outside",
    "the module does not use each time the same weights; capture the step instead",
    name="its weights",
)
MOVES_WEIGHTS = Refusal(
    "weights",
    "the module moves its weights to other memory when it is called; capture the step instead",
    name="a weight",
)
ON_HOST = Refusal(
    "weights",
    "the module has a weight on the host (device cpu); move it to the device",
    name="a weight",
)
SUBCLASS = Refusal(
    "weights", "the module has a weight of a subclass of Parameter", name="a weight"
)
CREATE_GRAPH = Refusal(
    "create_graph",
    "a backward pass with create_graph=True differentiates gradients, which no graph brings along: gradients "
    "of this one step are added up in another order than as written, and later calls run as written",
    name="create_graph",
)
SECOND_BACKWARD = Refusal(
    "retain_graph",
    "a second backward pass of one forward pass (retain_graph=True) reads what the first has used up",
    name="retain_graph",
)


OTHER_GRADIENTS = Refusal(
    "gradient_outside",
    "backward passes are not those that the calls before the capture had: of other outputs, of "
    "other strides, or in autocast; keep to one kind, or capture the step",
    name="other gradients",
    is_of_call=True,
)
