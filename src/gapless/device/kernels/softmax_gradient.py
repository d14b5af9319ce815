"""Loss and gradient of logits in one kernel, in Triton, which a torch for CPUs alone does not bring.

A row is read twice, and its gradient written over it. Nothing is added atomically: equal rows give equal bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# The fastest of those tried for 8,192 rows of 32,000 words on an H200.
_BLOCK, _NUM_WARPS = 8_192, 8


def losses_and_gradient_(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float, *, padding: int
) -> torch.Tensor:
    """Return the smoothed cross entropy of each row, and write the gradient of their sum over the logits.

    Args:
        logits: contiguous, [N, V], of any floating type; computed with in float32.
        targets: ids, [N].
        smoothing: share of the probability that is spread evenly over the words.
        padding: the target whose rows have neither loss nor gradient.

    Returns:
        float32, [N].

    Sync: Does not block the host, but for the first call, which compiles.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    vocab = logits.shape[1]
    # Loads of eight logits where rows begin at a multiple of eight.
    width = 1 if vocab % 8 else 8
    # Triton launches on the current device, not on that of its arguments.
    with torch.cuda.device(logits.get_device()):
        _kernel[(len(logits),)](
            logits, targets.contiguous(), losses, smoothing, padding, vocab // width,
            width=width, block=_BLOCK, num_warps=_NUM_WARPS,
        )  # fmt: skip
    return losses


# Or a chunk of targets that begins at another address would be compiled for anew, perhaps in a capture.
@triton.jit(do_not_specialize_on_alignment=["targets"])
def _kernel(  # type: ignore[no-untyped-def]
    logits,
    targets,
    losses,
    smoothing,
    padding,
    num_loads,
    width: tl.constexpr,
    block: tl.constexpr,
):
    vocab = num_loads * width
    # In 64 bits: a row may begin past 2**31 logits.
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    logits += row * vocab
    of_target = tl.load(logits + target).to(tl.float32)
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    sum_of_logits = tl.zeros([], tl.float32)
    for start in range(0, vocab, block):
        word = start + tl.arange(0, block)
        values = tl.load(logits + word, mask=word < vocab, other=float("-inf")).to(tl.float32)
        sum_of_logits += tl.sum(tl.where(word < vocab, values, 0.0), 0)
        higher = tl.maximum(highest, tl.max(values, 0))
        # While all are -inf, differences would be NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - shift) + tl.sum(tl.exp(values - shift), 0)
        highest = higher
    # All threads have read the target's logit before one of them writes over it.
    tl.debug_barrier()
    log_sum = tl.log(total) + highest
    smooth = log_sum - sum_of_logits / vocab
    loss = (1.0 - smoothing) * (log_sum - of_target) + smoothing * smooth
    tl.store(losses + row, tl.where(target == padding, 0.0, loss))
    for start in range(0, vocab, block):
        word = start + tl.arange(0, block)
        values = tl.load(logits + word, mask=word < vocab, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(values - highest) * (1.0 / total) - smoothing / vocab
        gradient = tl.where(word == target, gradient - (1.0 - smoothing), gradient)
        gradient = tl.where(target == padding, 0.0, gradient)
        tl.store(logits + word, gradient.to(logits.dtype.element_ty), mask=word < vocab)
