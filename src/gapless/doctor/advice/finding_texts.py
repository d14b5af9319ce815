"""What the finding of a line says: why the host waits there, and what to write instead.

`explanations.py` has what a code means in general.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.explanations import lines_added
from gapless.doctor.advice.own_mends import own_mend


if TYPE_CHECKING:
    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.advice.own_mends import Place


def cause_text(cause: Cause, call: str, detail: str = "") -> str:
    """Return in one sentence what happens at a line.

    Args:
        cause: why it waits.
        call: that waits, such as "Tensor.item".
        detail: what was found in this very call, such as the size of a copy; empty if nothing.
    """
    sentence = _CAUSES[cause].format(call=_AS_WRITTEN.get(call, call) or "A call")
    return f"{sentence.removesuffix('.')} ({detail})." if detail else sentence


def mend_text(cause: Cause, call: str, detail: str = "", place: Place | None = None) -> str:
    """Return what to write instead: a sentence or two; from the second line on code, if any.

    Args:
        cause: why it waits.
        call: that waits; some have a mend of their own.
        detail: what was found in this very call; it may choose the mend as well.
        place: where that is in its file; None where nobody knows.
    """
    said = f"{call} {detail}"
    own = [mend for word, mend in _OF_CALLS.get(cause, {}).items() if word in said]
    if not own and place is not None and (case := own_mend(cause, place)) is not None:
        own = [case]
    sentence, code = own[0] if own else _MENDS[cause]
    if code == _EXAMPLE:
        code = lines_added(CODE_OF[cause])
    return f"{sentence}\n{code}" if code else sentence


# What people write where Python calls a method of two underscores.
_AS_WRITTEN = {
    "DataLoader.__next__": "the loader",
    "Tensor.__array__": "numpy.asarray(tensor)",
    "Tensor.__bool__": "A tensor as a condition",
    "Tensor.__complex__": "complex(tensor)",
    "Tensor.__contains__": "`value in tensor`",
    "Tensor.__float__": "float(tensor)",
    "Tensor.__format__": "A tensor in a formatted text",
    "Tensor.__getitem__": "tensor[index]",
    "Tensor.__index__": "A tensor as an index or a bound",
    "Tensor.__int__": "int(tensor)",
    "Tensor.__iter__": "A loop over a tensor",
    "Tensor.__repr__": "print(tensor)",
    "Tensor.__setitem__": "tensor[index] = value",
    "Tensor.__str__": "str(tensor)",
}

_EXAMPLE = "the lines that the code's example adds"

_ALL_BEFORE = "until all work queued before it is done"

_CAUSES: dict[Cause, str] = {
    "item": f"{{call}} brings one number from the device to the host, which waits {_ALL_BEFORE}.",
    "float": f"{{call}} makes a Python number of a tensor on the device: the host waits {_ALL_BEFORE}.",
    "int": f"{{call}} makes a Python number of a tensor on the device: the host waits {_ALL_BEFORE}.",
    "bool": "{call} lets Python decide by a value on the device: the host waits until it is computed.",
    "format": f"{{call}} writes a value of the device into a text: the host waits {_ALL_BEFORE}.",
    "index": "{call} uses a value of the device as a Python number, as an index or a bound: the host "
    "waits until it is computed.",
    "print": "{call} makes a text of a tensor on the device: the host waits several times, for the "
    "values and for how to write them.",
    "cpu": f"{{call}} copies a tensor to the host, which waits {_ALL_BEFORE} and the copy as well.",
    "tolist": f"{{call}} makes a list of a tensor on the device: the host waits {_ALL_BEFORE} and "
    "copied.",
    "save": "{call} writes tensors of the device to a file: the host waits for a copy of each.",
    "copy": "{call} copies to the device, and the host waits until the copy is done.",
    "pageable copy": "{call} says non_blocking, but the memory is not page-locked, so the host waits "
    "all the same.",
    "strided copy": "{call} says non_blocking, but the memory has gaps, so the host "
    "first makes a copy of it that is not page-locked, and waits.",
    "new tensor": "{call} makes a tensor on the device from Python values: each time the host copies "
    "them and waits.",
    "cpu index": "{call} takes an index that is on the host, copies it to the device and waits.",
    "shape": "{call} returns a shape that depends on values: the host waits until the device has "
    "counted.",
    "equal": "{call} compares on the device and returns a Python bool: the host waits for the answer.",
    "linalg": "{call} asks the device whether the solver succeeded, to raise an error if not: the host "
    "waits for the answer.",
    "validation": "{call} checks the values of its arguments: the host waits for the answer.",
    "scaler": "{call} asks whether a gradient is infinite before it lets the optimizer update: the host "
    "waits for the answer.",
    "clip": "{call} asks whether the norm of the gradients is finite, to raise an error if not: the host "
    "waits for the answer.",
    "optimizer": "{call} reads values of the device to choose what it does: the host waits for them.",
    "stream": "{call} lets the host wait until all work queued on a stream is done.",
    "event": "{call} lets the host wait until the device has come to an event.",
    "device": "{call} lets the host wait until all streams of the device are done.",
    "query": "{call} is asked again and again until the device is done: a wait in which the host does "
    "nothing else.",
    "empty_cache": "{call} waits until the device is done and gives its memory back; the next step "
    "has to allocate it anew.",
    "allocation": "{call} finds no room in the memory that torch holds: the driver allocates or frees, "
    "and the host stands still.",
    "host allocation": "{call} page-locks memory in the loop, which can take the driver long, and "
    "copies into it on the host.",
    "loader": "The loop asks for a batch and {call} has none ready, so the device runs out of work.",
    "launch": "The host needs longer to queue the work of a step than the device to do it; no wait is "
    "to blame.",
    "shapes": "Batches come in ever new shapes: for new ones memory is allocated, and compiled or "
    "captured code is made again.",
    "gc": "Python's garbage collector runs in the loop; meanwhile nothing is queued.",
    "collective": "{call} lets the host wait until all processes have come here.",
    "unknown": "{call} blocked the host, and no line of the script is known that led to it.",
}

_LATE_READ = """\
total += loss.detach()  # a tensor on the device
if step % 10 == 9:
    print(total.item() / 10)
    total.zero_()"""

_READ = (
    "Keep the value on the device, add it up there, and read it every ten steps or more; or read it "
    "late and without a wait with gapless.DeferredLoss(device, every=10, on_values=print).",
    _LATE_READ,
)

_DECIDE = (
    "Where both ways are work of the device, let it choose: torch.where, torch.clamp, a factor of 0 or "
    "1. Where the loop itself depends on it, as to stop early, the host must know: ask every few steps, "
    "or once an epoch.",
    "scale = torch.where(norm > limit, limit / norm, 1.0)  # instead of `if norm > limit: ...`",
)

_EVENTS = (
    "To measure time, record events on the device and read them once at the end; to order work of "
    "two streams use wait_stream; otherwise leave it out.",
    _EXAMPLE,
)

_FORMULA = (
    "Where torch wants a Python number, write the formula with the tensor: torch.where, torch.maximum "
    "and products take tensors of the device.",
    "x = x + factor * y  # instead of x.add(y, alpha=factor)",
)

# A sentence or two, and code: "" without one, or what the example of the code adds.
_MENDS: dict[Cause, tuple[str, str]] = {
    "item": _READ,
    "float": _READ,
    "int": _READ,
    "bool": _DECIDE,
    "format": _READ,
    "index": (
        "Keep the index on the device: torch's own functions take tensors there. For a loop bound or a "
        "size use what is known on the host, such as the largest it can be.",
        "row = table.index_select(0, index)",
    ),
    "print": (
        "Print every so many steps, and a copy that was made once; or give what you print to "
        "gapless.DeferredLoss(device, every=10, on_values=print).",
        """\
if step % 100 == 0:
    print(loss.detach().cpu())""",
    ),
    "cpu": (
        "Keep results on the device and bring them over once, after the loop; sums and counts are "
        "smaller still. gapless.DeferredLoss does so for single numbers.",
        _EXAMPLE,
    ),
    "tolist": (
        "Keep results on the device and make one list of them, after the loop.",
        _EXAMPLE,
    ),
    "save": (
        "Save less often: a checkpoint every few minutes is enough for most runs.",
        """\
if step % 1000 == 0:
    torch.save(model.state_dict(), path)""",
    ),
    "copy": (
        "Let the loader pin its batches, and copy with non_blocking=True; or let "
        "gapless.prefetch(loader, device) do both.",
        _EXAMPLE,
    ),
    "pageable copy": (
        "Let the loader pin its batches: pin_memory=True; or let gapless.prefetch(loader, device) pin "
        "and copy.",
        _EXAMPLE,
    ),
    "strided copy": (
        "Copy memory as it lies, dense; slice and transpose on the device.",
        "x = x.to(device, non_blocking=True)[:, ::2]",
    ),
    "new tensor": (
        "Make it once before the loop. What changes in each step is better filled in on the device.",
        _EXAMPLE,
    ),
    "cpu index": (
        "Make the index once, on the device.",
        _EXAMPLE,
    ),
    "shape": (
        "Use a form whose size does not depend on values: torch.where and sums that leave out what "
        "does not count.",
        _EXAMPLE,
    ),
    "equal": (
        "Keep the answer on the device, and read it after the loop.",
        "differs |= (a != b).any()",
    ),
    "linalg": (
        "Use the form that leaves the check to you, where there is one: inv_ex, cholesky_ex, solve_ex, "
        "lu_factor_ex; they return `info` on the device. Call others less often.",
        "factor, info = torch.linalg.cholesky_ex(a)  # or inv_ex, solve_ex, lu_factor_ex",
    ),
    "validation": (
        "Turn the check off once the code works; a NaN is no error there any more.",
        _EXAMPLE,
    ),
    "scaler": (
        "Use a fused optimizer, which skips the update on the device; or bfloat16, which needs no "
        "scaler.",
        _EXAMPLE,
    ),
    "clip": (
        "Leave error_if_nonfinite out, keep the norm on the device, and look at it every few steps.",
        """\
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
worst = torch.maximum(worst, norm)  # NaN stays NaN""",
    ),
    "optimizer": (
        "Choose one that keeps its decisions on the device: capturable=True or fused=True where it "
        "has them, or AdamW; let schedulers read a value once an epoch.",
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
    ),
    "stream": _EVENTS,
    "device": _EVENTS,
    "event": (
        "Let the stream that needs the result wait, not the host; if the host needs it, let it wait for "
        "the event of an earlier step.",
        _EXAMPLE,
    ),
    "query": (
        "Ask once a step and go on if it is not done; if another stream needs the result, let that "
        "stream wait.",
        """\
if event.query():  # once a step
    take(result)""",
    ),
    "empty_cache": (
        "Leave it out: torch uses its memory again by itself. If memory runs out in pieces, set "
        "PYTORCH_ALLOC_CONF=expandable_segments:True.",
        "",
    ),
    "allocation": (
        "Run the largest batch first, so that all memory is there from then on; "
        "PYTORCH_ALLOC_CONF=expandable_segments:True helps where sizes vary.",
        "",
    ),
    "host allocation": (
        "Let the loader pin its batches in a thread of its own, or fill one pinned buffer again and "
        "again; gapless.prefetch(loader, device) does so.",
        _EXAMPLE,
    ),
    "loader": (
        "Let worker processes make batches ahead of time, as many as there are cores to spare; "
        "gapless.prefetch(loader, device, depth=2) also copies them ahead, which changes results where "
        "loader and loop draw from one random generator. persistent_workers=True saves their start in "
        "each epoch, but from the second on the batches are others: torch then draws the workers' seed "
        "once, not in each epoch.",
        _EXAMPLE,
    ),
    "launch": (
        "Queue less: a fused optimizer, larger batches, torch.compile(model, "
        'mode="reduce-overhead"); or replay the step as one graph with gapless.capture.',
        "gapless.capture(model, optimizer)",
    ),
    "shapes": (
        "Pad batches to few sizes, such as multiples of 8 or 64, or sort by length, and run the largest "
        "first.",
        "x = F.pad(x, (0, -x.shape[1] % 64))",
    ),
    "gc": (
        "Tell the collector once that what is there will stay; then it has little to look at.",
        _EXAMPLE,
    ),
    "collective": (
        "Leave barriers out of the loop; start collectives with async_op=True and wait for them where "
        "their result is used; send tensors of the device, not Python objects.",
        "work = torch.distributed.all_reduce(loss, async_op=True)",
    ),
    "unknown": (
        "Run it again with `gapless doctor --exact`, which sees waits inside of libraries; the thread and the call "
        "say where to look.",
        "",
    ),
}

# Mends of single calls: for a word that is in the call or in the detail.
_OF_CALLS: dict[Cause, dict[str, tuple[str, str]]] = {
    "float": dict.fromkeys(
        (".add", ".sub", ".clamp", ".full", ".fill", ".lerp", "masked_fill"), _FORMULA
    ),
    "item": {
        "get_scale": (
            "Log the scale every hundred steps.",
            """\
if step % 100 == 0:
    print(scaler.get_scale())""",
        ),
    },
    "validation": {
        "AveragedModel": (
            "Update the average every few steps: each time it reads how often it was updated. That is "
            "another average: an equal one of fewer weights; an exponential one forgets as fast as "
            "before with decay ** 10, and ten times more slowly with the old decay.",
            """\
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay**10))
...
if step % 10 == 0:
    averaged.update_parameters(model)""",
        ),
    },
    "gc": {
        "gc.collect": ("Leave it out of the loop, or call it after each epoch.", ""),
    },
    "cpu": {
        "ctc_loss": (
            "Give the lengths as tensors of the host or as tuples: torch needs them there.",
            "F.ctc_loss(log_probs, targets, input_lengths, target_lengths)  # both on the host",
        ),
        "pad_packed_sequence": (
            "Sort batches by length in the loader and pass enforce_sorted=True when packing.",
            "",
        ),
    },
    "copy": {
        "pack_padded_sequence": (
            "Sort batches by length in the loader and pass enforce_sorted=True.",
            "packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)",
        ),
    },
    "shape": {
        "__setitem__": (
            "Choose with torch.where, from values of the same shape; to assign one number does not wait.",
            "x = torch.where(mask, values, x)  # or x[mask] = 0.0",
        ),
        "nonzero": (
            "Use torch.where or a mask instead of positions; where positions are needed, "
            "torch.nonzero_static takes their number.",
            "index = torch.nonzero_static(mask, size=most, fill_value=0)",
        ),
        **dict.fromkeys(
            ("unique", "bincount"),
            (
                "Count on the device with a fixed number of classes; bincount waits even with minlength.",
                "counts = torch.zeros(num_classes, dtype=torch.int64, device=device)\n"
                "counts.scatter_add_(0, labels.flatten(), torch.ones_like(labels.flatten()))",
            ),
        ),
        "one_hot": (
            "Give the number of classes.",
            "F.one_hot(labels, num_classes=10)",
        ),
        "repeat_interleave": (
            "Give the size of the result, if the host knows it.",
            "x.repeat_interleave(counts, dim=0, output_size=num_rows)",
        ),
    },
    "optimizer": {
        "ReduceLROnPlateau": (
            "Call it once an epoch, with a mean that was read once.",
            "scheduler.step(total.item() / num_steps)  # after the epoch",
        ),
        "BatchNorm": (
            "Give a momentum: with None the number of batches is read in each forward pass.",
            "torch.nn.BatchNorm2d(num_features, momentum=0.1)",
        ),
        "LBFGS": (
            "LBFGS reads the loss in each of its inner steps; give it few and large batches, or use "
            "another optimizer.",
            "",
        ),
    },
    "loader": {
        "of the loop": (
            "Make the next one while the device works on this: in worker processes of a DataLoader, or in "
            "a thread, as gapless.prefetch does with any iterator.",
            "",
        ),
        "of an environment": (
            "Step several environments at once, in processes of their own, as gymnasium's AsyncVectorEnv does.",
            "",
        ),
        "has ": (
            "Give the loader more of the cores, or its rows less to do: what does not change is made once, "
            "before training. gapless.prefetch(loader, device, depth=2) also copies batches ahead, which "
            "changes results where loader and loop draw from one random generator.",
            "",
        ),
    },
}
