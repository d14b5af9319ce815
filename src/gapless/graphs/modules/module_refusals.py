"""Why a module cannot be captured where it stands: what its calls as written have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from gapless.graphs.modules.gradient_paths import GradientPaths


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
    """Refuse a module with a hook.

    Args:
        text: which.
    """
    return Refusal(
        "hook",
        f"{text}, which a replay would not call; set it on the captured module's outputs",
        name="a hook",
    )


def may_differentiate(site: str) -> Refusal:
    """Refuse a module whose gradients the user's code may differentiate.

    Args:
        site: file and line where it asks for such gradients.
    """
    return Refusal(
        "create_graph",
        f"{site} may run a backward pass with create_graph=True, whose gradients behind a replay would be "
        "added up in another order than as written: calls with gradients run as written; capture the whole "
        "step",
        site=site,
        name="create_graph",
    )


def keeps_unknown(name: str, site: str) -> Refusal:
    """Refuse a module that keeps something from call to call.

    Args:
        name: as the code says it.
        site: file and line, "" if that is not known.
    """
    where = f"{site}: " if site else ""
    return Refusal(
        "keeps_unknown",
        f"{where}the module keeps {name} from call to call; write into it with `copy_()`, or return it "
        "and pass it as an argument",
        site=site or None,
        name=name,
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
    "the module returns a tensor that shares memory with another one, or with what it is given; return a clone",
    name="shared memory",
)
COPIED = Refusal(
    "weights",
    "an object that has a copy of the module's attributes, as nn.DataParallel makes for each GPU, is called: "
    "it runs as written; use DistributedDataParallel, or copy.copy()",
    name="a copy",
    is_of_call=True,
)
COMPILED = Refusal(
    "compiled",
    "the module runs code of torch.compile, whose backward pass nobody can follow; capture the step instead",
    name="torch.compile",
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
