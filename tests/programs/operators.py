"""Tensors: indices, views, pieces, dtypes and writes in place."""

from __future__ import annotations

import torch

from programs.registry import program


@program
def masks(put):
    x, mask = put(torch.randn(4, 5)), put(torch.rand(4, 5) > 0.5)
    chosen = x[mask]
    y = x.clone()
    y[mask] = 0.0
    z = x.clone()
    z[mask] = chosen * 2
    return [
        chosen,
        y,
        z,
        x.masked_fill(mask, 7.0),
        torch.where(mask, x, -x),
        torch.where(mask, x, 0.0),
        mask.nonzero(),
        torch.masked_select(x, mask),
        (x > 0).sum(),
        (~mask).any(dim=1),
        mask & (x > 0),
    ]


@program
def indices(put):
    x, at = put(torch.randn(6, 4)), put(torch.tensor([3, 0, 3, 5]))
    y = x.clone()
    y[at] = 1.5
    y.index_add_(0, at, x[:4])
    z = torch.zeros_like(x).index_put_((at, at[:1]), x[:4, 0], accumulate=True)
    return [
        x[at],
        x[at, 1:3],
        x[:, [0, 2]],
        y,
        z,
        x.gather(0, at.view(1, 4)),
        torch.zeros_like(x).scatter_(0, at.view(1, 4), 2.0),
        torch.zeros_like(x).scatter_add(0, at.view(4, 1), x[:4, :1]),
        x.index_select(1, at[1:2]),
        x.take_along_dim(at.view(4, 1), 0),
        torch.bincount(at),
        torch.repeat_interleave(x, 2, dim=0),
        torch.repeat_interleave(x[:4], at, dim=0, output_size=11),
    ]


@program
def gradients_of_indexing(put):
    x, at = put(torch.randn(6, 4)).requires_grad_(), put(torch.tensor([3, 0, 3]))
    (x[at].sum() + x[x > 0].pow(2).sum() + x[1:3, ::2].prod() + x[-1].max()).backward()
    return [x.grad]


@program
def pieces_and_joins(put):
    x = put(torch.randn(6, 4))
    a, b, c = x.split([1, 2, 3])
    return [
        torch.cat([c, a, b]),
        torch.stack(x.unbind(1)),
        torch.cat(x.chunk(3, dim=0), dim=1),
        torch.hstack([a.t(), b.t()]),
        torch.block_diag(a, b),
        *torch.tensor_split(x, 4, dim=1),
        *torch.unsafe_split(x, 2),
    ]


@program
def writes_in_place(put):
    x = put(torch.arange(12.0).view(3, 4))
    x += 1
    x[1] *= 2
    x[:, 2] -= x[:, 1]
    x[0, 0] = 9
    x.t()[3].sqrt_()
    x.clamp_(max=8).add_(x, alpha=0.5)
    x[..., -1:].copy_(x[..., :1])
    x[2].fill_(4).mul_(x[0, 0])
    x.diagonal().zero_()
    return [x]


@program
def changes_of_shape_in_place(put):
    x = put(torch.arange(6.0).view(1, 2, 3))
    x.squeeze_(0).t_().unsqueeze_(1)
    y = put(torch.arange(4.0)).resize_(2, 2)
    z = put(torch.arange(4.0)).requires_grad_() * 2
    z.detach_()
    return [x, y + 1, z, x.transpose_(0, 2) * 2]


@program
def results_into_given_tensors(put):
    x = put(torch.randn(3, 4))
    right, wrong, whole = put(torch.empty(3, 4)), torch.empty(0), put(torch.zeros(3, 8))
    torch.add(x, 1, out=right)
    torch.mul(x, 2, out=wrong)
    torch.exp(x, out=whole[:, ::2])
    values, places = put(torch.empty(3)), put(torch.empty(3, dtype=torch.long))
    torch.max(x, dim=1, out=(values, places))
    torch.cat([x, x], out=wrong.resize_(0))
    torch.sum(x, 0, out=(total := torch.empty(0)))
    return [right, wrong, whole, values, places, total]


@program
def views_of_views(put):
    x = put(torch.arange(48.0))
    y = x.view(4, 12)[1:, ::3].transpose(0, 1)[1:]
    y *= 3
    return [
        x,
        y.reshape(-1),
        y.contiguous().view(-1),
        x.unfold(0, 5, 3).sum(1),
        x.as_strided((3, 4), (2, 1), 5) + 1,
        x[:1].expand(3, 4).sum(0),
        x.view(6, 8).flip(0).roll(1, 1).rot90(),
        x.view(torch.int32) + 1,
        x.view(2, 24).movedim(0, 1).flatten(),
    ]


@program
def reductions_and_scalars(put):
    x = put(torch.randn(5, 7))
    return [
        x.sum(),
        x.mean(0),
        x.std(1),
        x.var(),
        x.norm(),
        x.max(),
        x.argmax(1),
        *x.max(dim=1),
        *x.topk(3),
        *x.sort(descending=True),
        x.logsumexp(1),
        x.softmax(0),
        x.cumsum(1),
        x.prod(),
        x.median(),
        x.amin((0, 1)),
        torch.linalg.vector_norm(x),
        x.sum() * 2 + 1,
        2 / x.abs().max(),
        x / x.sum(),
    ]


@program
def linear_algebra(put):
    x = put(torch.randn(4, 4))
    square = x @ x.t() + 4 * torch.eye(4)
    return [
        torch.linalg.cholesky(square),
        torch.linalg.inv(square),
        torch.linalg.solve(square, x),
        torch.linalg.det(square),
        torch.linalg.qr(x).R.abs(),
        torch.linalg.eigh(square).eigenvalues,
        torch.einsum("ij,kj->ik", x, square),
        torch.bmm(x.view(2, 2, 4), x.view(2, 4, 2)),
        torch.baddbmm(x[:2, :2].expand(2, 2, 2), x.view(2, 2, 4), x.view(2, 4, 2)),
        torch.outer(x[0], x[1]),
        x.tril().triu(-1),
    ]


@program
def small_dtypes(put):
    x = put(torch.arange(10, dtype=torch.int32))
    flags = x % 2 == 0
    return [
        x + 1,
        x // 3,
        x.to(torch.int8),
        x << 2,
        flags.logical_not(),
        flags.all(),
        flags.sum(),
        x.half() * 0.5,
        x.bfloat16().sum(),
        x / 2,
        x * 2.5,
        x.to(torch.uint8) + flags,
        x.bool(),
        torch.bucketize(x, x[::3]),
        x.double().sin(),
    ]


@program
def complex_numbers(put):
    x = put(torch.randn(4, 6, dtype=torch.complex64))
    y = x.clone()
    y.imag.mul_(2)
    y.real[1:3] = 0
    return [
        x[1:, ::2] * 2j,
        x.conj() * x,
        x.conj()[0] + 1,
        x.imag.neg(),
        x.conj().imag + 1,
        y,
        x.abs(),
        x.angle(),
        torch.view_as_real(x)[..., 1],
        torch.fft.fft(x, dim=1),
        torch.fft.irfft(torch.fft.rfft(x.real)),
        x @ x.mH,
        torch.complex(x.real, x.imag.contiguous()),
    ]


@program
def empty_tensors(put):
    x = put(torch.randn(4, 3))
    none = x[:0]
    return [
        none,
        none + 1,
        none.sum(),
        torch.cat([none, x]),
        x[x > 100],
        none @ x.t(),
        torch.empty(0) + 1,
        torch.cat([torch.empty(0), torch.ones(2)]),
        put(torch.empty(0)) * 2,
        torch.stack([none, none]),
        torch.zeros(0, 3).sum(0) + x,
    ]
