"""The variants of a script: edits of its text, which can be shown, counted and run.

`published/NAME.py` is a script as written. `published/NAME.diff` holds one section for each variant,
which begins with `+++ VARIANT`. A section has hunks, which begin with `@@`. Lines of a hunk begin
with a space if they stay, with `-` if they go and with `+` if they come. A hunk stands where its
lines that stay or go are found in the script, behind the hunk before it.

What captures or compiles the same step with the same edits has no section: it is the text of
`whole-step` with another decorator in place of `@gapless.capture`, behind the section `peers`, which
holds what others need besides (an optimizer that may be captured, a rate that is a tensor).
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from types import ModuleType


AS_WRITTEN = "as-written"
PREFETCH = "prefetch"
IN_PLACE = "in-place"
WHOLE_STEP = "whole-step"
COMPILE = "compile"
REDUCE_OVERHEAD = "reduce-overhead"
GRAPHED = "graphed-callables"
WHOLE_STEP_EQUAL = "whole-step-equal"
WHOLE_STEP_COMPILED = "whole-step-compiled"
EQUAL_EDITS = "equal-edits"
COMPILE_STEP = "compile-step"
REDUCE_OVERHEAD_STEP = "reduce-overhead-step"
CUDA_GRAPH_MODULE = "cudagraph-module"

# What each of them is, for tables.
VARIANTS = {
    AS_WRITTEN: "the script as written",
    PREFETCH: "gapless.prefetch and gapless.DeferredLoss",
    IN_PLACE: "gapless.capture(model, optimizer), and prefetch within four added lines",
    WHOLE_STEP: "step = gapless.capture(step), with prefetch and deferred loss",
    WHOLE_STEP_EQUAL: "step = gapless.capture(step), with the edits that others need",
    WHOLE_STEP_COMPILED: "step = gapless.capture(step, compile=True), with the same edits",
    COMPILE: "torch.compile",
    REDUCE_OVERHEAD: 'torch.compile(mode="reduce-overhead")',
    GRAPHED: "torch.cuda.make_graphed_callables",
    EQUAL_EDITS: "the edits of the whole step, nothing captured",
    CUDA_GRAPH_MODULE: "tensordict's CudaGraphModule, equal edits",
    COMPILE_STEP: "torch.compile of the step, equal edits",
    REDUCE_OVERHEAD_STEP: 'torch.compile(mode="reduce-overhead") of the step, equal edits',
}

# Those of others, which mean something on a GPU alone.
GPU_ONLY = (
    COMPILE,
    REDUCE_OVERHEAD,
    GRAPHED,
    CUDA_GRAPH_MODULE,
    COMPILE_STEP,
    REDUCE_OVERHEAD_STEP,
)
COMPILED = (COMPILE, REDUCE_OVERHEAD, COMPILE_STEP, REDUCE_OVERHEAD_STEP, WHOLE_STEP_COMPILED)

PEERS = "peers"
_CAPTURED = "@gapless.capture"
# What stands for the decorator of the whole step.
DECORATORS = {
    WHOLE_STEP_EQUAL: "@gapless.capture",
    WHOLE_STEP_COMPILED: "@gapless.capture(compile=True)",
    EQUAL_EDITS: "",
    CUDA_GRAPH_MODULE: "@CudaGraphModule",
    COMPILE_STEP: "@torch.compile",
    REDUCE_OVERHEAD_STEP: '@torch.compile(mode="reduce-overhead")',
}
_IMPORTS = {CUDA_GRAPH_MODULE: "from tensordict.nn import CudaGraphModule\n"}

# What is said of bits, and what is changed behind the back of a variant.
SAME = "same"
WEIGHT, RATE, ATTRIBUTE = "weight", "rate", "attribute"
CHANGES = (WEIGHT, RATE, ATTRIBUTE)

FOLDER = Path(__file__).parent / "published"
NAMES = (
    "nanogpt",
    "translation",
    "image_amp_ema",
    "mnist",
    "word_lm",
    "dcgan",
    "ddpm",
    "ppo",
    "speech",
    "gcn",
    "bert",
    "vit",
    "segmentation",
    "sac",
    "pinn",
    "act",
    "molecules",
    "nbeats",
    "lora",
)

# Those whose batches can have shapes that change.
CHANGING = ("translation", "bert", "speech", "molecules")


class EditError(ValueError):
    """A variant does not fit its script."""


@dataclass(frozen=True)
class Hunk:
    """Lines of a script, and what stands in their place."""

    old: list[str]
    new: list[str]


def source_of(name: str, variant: str) -> str:
    """Return the text of a script in a variant.

    Raises:
        EditError: there is no such variant, or it does not fit the script.
    """
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if variant == AS_WRITTEN:
        return text
    edits = sections((FOLDER / f"{name}.diff").read_text(encoding="utf-8"))
    steps = [WHOLE_STEP, PEERS] if variant in DECORATORS else [variant]
    try:
        for step in steps:
            if step not in edits or variant == PEERS:
                raise EditError(f"no such variant; there are {', '.join(VARIANTS)}")
            text = edited(text, edits[step])
    except EditError as error:
        raise EditError(f"{name}, {variant}: {error}") from None
    return _with_decorator(text, variant) if variant in DECORATORS else text


def _with_decorator(text: str, variant: str) -> str:
    """Return the text of the whole step with the decorator of another variant."""
    lines = []
    for line in text.splitlines():
        if line.strip() != _CAPTURED:
            lines.append(line)
        elif DECORATORS[variant]:
            lines.append(line.replace(_CAPTURED, DECORATORS[variant]))
    text = "\n".join([*lines, ""])
    return text.replace("import gapless\n", _IMPORTS.get(variant, "") + "import gapless\n", 1)


def uncaptured(variant: str) -> tuple[str, bool]:
    """Return what a variant is without its captures, and whether captures of gapless are off."""
    if variant in (PREFETCH, IN_PLACE, WHOLE_STEP, WHOLE_STEP_COMPILED):
        return variant, True
    return (EQUAL_EDITS if variant in DECORATORS else AS_WRITTEN), False


def sections(text: str) -> dict[str, list[Hunk]]:
    """Return the hunks of each variant in a file of diffs."""
    found: dict[str, list[Hunk]] = {}
    for line in text.splitlines():
        if line.startswith("+++ "):
            hunks = found[line[4:].strip()] = []
        elif line == "@@":
            hunks.append(Hunk([], []))
        elif line[:1] in ("", " ", "-", "+"):
            if line[:1] != "+":
                hunks[-1].old.append(line[1:])
            if line[:1] != "-":
                hunks[-1].new.append(line[1:])
        else:
            raise EditError(f"{line!r} is neither a hunk nor a line of one")
    return found


def edited(text: str, hunks: list[Hunk]) -> str:
    """Return a text with its hunks applied."""
    rest, done = text.splitlines(), []
    for hunk in hunks:
        size = len(hunk.old)
        starts = [at for at in range(len(rest) - size + 1) if rest[at : at + size] == hunk.old]
        if len(starts) != 1:
            lines = "\n".join(hunk.old)
            raise EditError(f"found {len(starts)} times, expected once:\n{lines}")
        done += rest[: starts[0]] + hunk.new
        rest = rest[starts[0] + size :]
    return "\n".join([*done, *rest, ""])


def changed_lines(name: str, variant: str) -> dict[str, int]:
    """Return how many lines a variant adds to its script, and how many it removes.

    A line that is changed is removed and added. Empty lines do not count.
    """
    sources = [source_of(name, which).splitlines() for which in (AS_WRITTEN, variant)]
    lines = difflib.unified_diff(*sources, lineterm="", n=0)
    signs = [line[0] for line in list(lines)[2:] if line[1:].strip()]
    return {"added": signs.count("+"), "removed": signs.count("-")}


def shown(name: str, variant: str) -> str:
    """Return a variant as a diff with line numbers."""
    sources = [source_of(name, which).splitlines() for which in (AS_WRITTEN, variant)]
    names = [f"{name}.py {which}" for which in (AS_WRITTEN, variant)]
    return "\n".join(difflib.unified_diff(*sources, *names, lineterm="", n=2))


# Made here: threads that load scripts at once would make several, of which `cache` keeps one and the rest go.
_SOURCES = tempfile.TemporaryDirectory(prefix="scripts-")


@cache
def load(name: str, variant: str) -> ModuleType:
    """Return the module of a script in a variant.

    Its text is in a file of its own, so that errors and reports name its lines.

    Raises:
        EditError: as `source_of`.
        ImportError: it needs a package that is missing.
    """
    title = f"{name}_{variant.replace('-', '_')}"
    path = Path(_SOURCES.name) / f"{title}.py"
    path.write_text(source_of(name, variant), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module
