"""Attention within packed rows, in Triton. Needs Triton; imports where there is none fail.

Each program has one head and a block of neighbouring tokens, of however many rows, and reads one
span of the other side: from the first token that any of its own may meet to the last. A block of
short sentences so costs no more than one of a long sentence, and nothing is kept for empty rows.

The output and the logarithm of each query's sum are computed as FlashAttention does (Dao et al.
2022, algorithms 1 and 4; 2023, algorithms 1 and 2), with powers of 2. One pass over keys gives the
gradients of queries, one over queries those of keys and values. Every number is written by one
program, without atomics: equal calls give equal bits.

Shape suffixes: N query tokens, M key tokens, R rows, H heads, E width of a head. Vectors of a head
are counted through: token n has number n * H + head, and where keys and values stand together,
m has keys (2 * m) * H + head and values (2 * m + 1) * H + head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# Tokens of a program, and how many it reads at a time, by the bytes of a number. In 16 bits, with
# the stages below, the fastest for heads of 64 on an H200. Float32 has no tensor cores and needs
# more registers.
_SIZES = {2: (64, 32), 4: (32, 16)}

_NOWHERE = tl.constexpr(0x7FFFFFFF)
_LOG2_E = tl.constexpr(1.4426950408889634)


# --- kernels ---

# Starts of rows are part of a larger tensor, at any address: kernels are not compiled for its alignment.


@triton.jit
def _span(rows, starts, token, is_token):
    """Return the first token of the other side that each token may meet, and the one after the last."""
    row = tl.load(rows + token, mask=is_token, other=0)
    first = tl.load(starts + row, mask=is_token, other=_NOWHERE)
    end = tl.load(starts + row + 1, mask=is_token, other=0)
    return first, end


@triton.jit
def _at(vectors, number, E: tl.constexpr):
    """Return where vectors of these numbers stand, [numbers, E]."""
    return vectors + number[:, None].to(tl.int64) * E + tl.arange(0, E)[None, :]


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["key_starts"])
def _forward_kernel(
    q, kv, out, sums, query_rows, key_starts, num_queries, causal,
    E: tl.constexpr, OWN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    head, H = tl.program_id(1), tl.num_programs(1)
    n = tl.program_id(0) * OWN + tl.arange(0, OWN)
    is_query = n < num_queries
    first, end = _span(query_rows, key_starts, n, is_query)
    end = tl.where(causal != 0, tl.minimum(end, n + 1), end)
    q_NE = tl.load(_at(q, n * H + head, E), mask=is_query[:, None], other=0.0)
    highest = tl.full([OWN], float("-inf"), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    acc = tl.zeros([OWN, E], tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(first, 0), last, STEP):
        m = start + tl.arange(0, STEP)
        is_key = (m < last)[:, None]
        k_ME = tl.load(_at(kv, 2 * m * H + head, E), mask=is_key, other=0.0)
        v_ME = tl.load(_at(kv, (2 * m + 1) * H + head, E), mask=is_key, other=0.0)
        scores = tl.dot(q_NE, tl.trans(k_ME), input_precision="ieee") * (E**-0.5 * _LOG2_E)
        meets = (m[None, :] >= first[:, None]) & (m[None, :] < end[:, None])
        scores = tl.where(meets, scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        # A query that has met no key yet would subtract infinity from infinity.
        finite = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - finite[:, None])
        keep = tl.exp2(highest - finite)
        total = total * keep + tl.sum(p, 1)
        acc = tl.dot(p.to(v_ME.dtype), v_ME, acc * keep[:, None], input_precision="ieee")
        highest = new
    # Queries of a row without keys get zeros.
    is_alone = total == 0.0
    total = tl.where(is_alone, 1.0, total)
    out_NE = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(_at(out, n * H + head, E), out_NE, mask=is_query[:, None])
    log_sum = tl.where(is_alone, 0.0, highest) + tl.log2(total)
    tl.store(sums + head * num_queries + n, log_sum, mask=is_query)


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["key_starts"])
def _queries_kernel(
    grad, q, kv, out, sums, dots, dq, query_rows, key_starts, num_queries, causal,
    E: tl.constexpr, OWN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    head, H = tl.program_id(1), tl.num_programs(1)
    n = tl.program_id(0) * OWN + tl.arange(0, OWN)
    is_query = n < num_queries
    first, end = _span(query_rows, key_starts, n, is_query)
    end = tl.where(causal != 0, tl.minimum(end, n + 1), end)
    own = n * H + head
    q_NE = tl.load(_at(q, own, E), mask=is_query[:, None], other=0.0)
    grad_NE = tl.load(_at(grad, own, E), mask=is_query[:, None], other=0.0)
    out_NE = tl.load(_at(out, own, E), mask=is_query[:, None], other=0.0)
    dot = tl.sum(grad_NE.to(tl.float32) * out_NE.to(tl.float32), 1)
    tl.store(dots + head * num_queries + n, dot, mask=is_query)
    log_sum = tl.load(sums + head * num_queries + n, mask=is_query, other=0.0)
    acc = tl.zeros([OWN, E], tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(first, 0), last, STEP):
        m = start + tl.arange(0, STEP)
        is_key = (m < last)[:, None]
        k_ME = tl.load(_at(kv, 2 * m * H + head, E), mask=is_key, other=0.0)
        v_ME = tl.load(_at(kv, (2 * m + 1) * H + head, E), mask=is_key, other=0.0)
        scores = tl.dot(q_NE, tl.trans(k_ME), input_precision="ieee") * (E**-0.5 * _LOG2_E)
        meets = (m[None, :] >= first[:, None]) & (m[None, :] < end[:, None])
        p = tl.where(meets, tl.exp2(scores - log_sum[:, None]), 0.0)
        dp = tl.dot(grad_NE, tl.trans(v_ME), input_precision="ieee")
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k_ME.dtype), k_ME, acc, input_precision="ieee")
    dq_NE = (acc * E**-0.5).to(dq.dtype.element_ty)
    tl.store(_at(dq, own, E), dq_NE, mask=is_query[:, None])


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["query_starts"])
def _keys_kernel(
    grad, q, kv, sums, dots, dkv, key_rows, query_starts, num_queries, num_keys, causal,
    E: tl.constexpr, OWN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    head, H = tl.program_id(1), tl.num_programs(1)
    m = tl.program_id(0) * OWN + tl.arange(0, OWN)
    is_key = m < num_keys
    first, end = _span(key_rows, query_starts, m, is_key)
    first = tl.where(causal != 0, tl.maximum(first, m), first)
    keys, values = 2 * m * H + head, (2 * m + 1) * H + head
    k_ME = tl.load(_at(kv, keys, E), mask=is_key[:, None], other=0.0)
    v_ME = tl.load(_at(kv, values, E), mask=is_key[:, None], other=0.0)
    dk_ME = tl.zeros([OWN, E], tl.float32)
    dv_ME = tl.zeros([OWN, E], tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(first, 0), last, STEP):
        n = start + tl.arange(0, STEP)
        is_query = n < last
        q_NE = tl.load(_at(q, n * H + head, E), mask=is_query[:, None], other=0.0)
        grad_NE = tl.load(_at(grad, n * H + head, E), mask=is_query[:, None], other=0.0)
        log_sum = tl.load(sums + head * num_queries + n, mask=is_query, other=0.0)
        dot = tl.load(dots + head * num_queries + n, mask=is_query, other=0.0)
        scores = tl.dot(k_ME, tl.trans(q_NE), input_precision="ieee") * (E**-0.5 * _LOG2_E)
        meets = (n[None, :] >= first[:, None]) & (n[None, :] < end[:, None])
        p = tl.where(meets, tl.exp2(scores - log_sum[None, :]), 0.0)
        dv_ME = tl.dot(p.to(grad_NE.dtype), grad_NE, dv_ME, input_precision="ieee")
        dp = tl.dot(v_ME, tl.trans(grad_NE), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk_ME = tl.dot(ds.to(q_NE.dtype), q_NE, dk_ME, input_precision="ieee")
    kind = dkv.dtype.element_ty
    tl.store(_at(dkv, keys, E), (dk_ME * E**-0.5).to(kind), mask=is_key[:, None])
    tl.store(_at(dkv, values, E), dv_ME.to(kind), mask=is_key[:, None])


# --- operators ---


def _grid(q, num_tokens):
    return triton.cdiv(num_tokens, _SIZES[q.itemsize][0]), q.shape[1]


def _device_of(q):
    """Return a context on the device of a tensor: Triton launches on the current one."""
    return torch.cuda.device(q.get_device())


def _options(q, is_causal):
    own, step = _SIZES[q.itemsize]
    return {"causal": int(is_causal), "E": q.shape[2], "OWN": own, "STEP": step, "num_warps": 4}


@torch.library.custom_op("gapless::attend", mutates_args=())
def attend(
    queries_NHE: torch.Tensor,
    keys_values_M2HE: torch.Tensor,
    query_rows: torch.Tensor,
    query_starts: torch.Tensor,
    key_rows: torch.Tensor,
    key_starts: torch.Tensor,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each query gets from the keys of its row, and the logarithm of its sum.

    Args:
        queries_NHE: in 16 bits or float32; E is a power of 2 from 16 on, to 128 by registers and shared memory.
        keys_values_M2HE: keys and values, of the same type.
        query_rows: row of each query token, [N], int32.
        query_starts: first query token of each row, and N, [R + 1], int32.
        key_rows: the same of the key tokens, [M].
        key_starts: the same of the key tokens, [R + 1].
        is_causal: only from keys up to the query's own place.

    Returns:
        The output, [N, H, E], zeros in rows without keys, and the logarithms to base 2 of the sums
        of weights, [H, N], float32, which the backward pass needs; they have no gradient.

    Sync: Does not block the host, but for the first call, which compiles.
    """
    q, kv = queries_NHE.contiguous(), keys_values_M2HE.contiguous()
    out, sums = _empty_outputs(q)
    options = _options(q, is_causal)
    with _device_of(q):
        _forward_kernel[_grid(q, len(q))](
            q, kv, out, sums, query_rows, key_starts, len(q), **options, num_stages=3
        )
    return out, sums


@attend.register_fake
def _(queries_NHE, *_):
    return _empty_outputs(queries_NHE)


def _empty_outputs(q):
    sums = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    return q.new_empty(q.shape), sums


@torch.library.custom_op("gapless::attend_backward", mutates_args=())
def _attend_backward(
    grad: torch.Tensor, q: torch.Tensor, kv: torch.Tensor,
    query_rows: torch.Tensor, query_starts: torch.Tensor,
    key_rows: torch.Tensor, key_starts: torch.Tensor,
    out: torch.Tensor, sums: torch.Tensor, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of queries, and of keys and values."""
    grad, q, kv = grad.contiguous(), q.contiguous(), kv.contiguous()
    dq, dkv, dots = torch.empty_like(q), torch.empty_like(kv), torch.empty_like(sums)
    options = _options(q, is_causal)
    with _device_of(q):
        _queries_kernel[_grid(q, len(q))](
            grad, q, kv, out, sums, dots, dq, query_rows, key_starts,
            len(q), **options, num_stages=2,
        )  # fmt: skip
        _keys_kernel[_grid(q, len(kv))](
            grad, q, kv, sums, dots, dkv, key_rows, query_starts,
            len(q), len(kv), **options, num_stages=3,
        )  # fmt: skip
    return dq, dkv


@_attend_backward.register_fake
def _(grad, q, kv, *_):
    return q.new_empty(q.shape), kv.new_empty(kv.shape)


def _keep(ctx, inputs, output):
    *tensors, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors, *output)
    # Nobody uses the sums: no zeros are made as their gradient.
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad, _):
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.is_causal), *[None] * 5


attend.register_autograd(_gradients, setup_context=_keep)
