"""Layers, random numbers, modes, and values that come to the host."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn
from torch.nn import functional as F

from programs.registry import program


@program
def random_numbers(put):
    x = put(torch.rand(6, 6))
    strided = put(torch.zeros(8, 40))
    strided[:, ::2].normal_()
    strided[:, 1::4].uniform_()
    return [
        torch.randn_like(x),
        torch.rand_like(x),
        torch.randint_like(x, 9),
        torch.bernoulli(x),
        x.clone().exponential_(),
        x.clone().random_(5),
        x.clone().bernoulli_(0.3),
        torch.multinomial(x, 3),
        torch.multinomial(x, 3, replacement=True),
        torch.normal(x, 1.0),
        F.dropout(x, 0.4),
        F.dropout2d(x.view(1, 6, 6, 1), 0.4),
        F.alpha_dropout(x, 0.2, training=True),
        F.rrelu(x - 0.5, training=True),
        F.gumbel_softmax(x),
        torch.poisson(x * 9),
        torch.binomial(x * 9, x),
        strided,
        torch.randn(3),
    ]


@program
def generators(put):
    draw = torch.Generator().manual_seed(5)
    x = put(torch.rand(4, 4))
    found = [
        x.clone().normal_(generator=draw),
        torch.bernoulli(x, generator=draw),
        torch.multinomial(x, 2, generator=draw),
        x.clone().uniform_(generator=draw),
        torch.randn(3, generator=draw) + x[0, :3],
        torch.rand_like(x),
    ]
    return [*found, draw.get_state()]


@program
def modes_of_the_thread(put):
    x = put(torch.randn(4, 4)).requires_grad_()
    with torch.no_grad():
        y = x * 2
        y.add_(1)
    with torch.inference_mode():
        z = x + 1
        z.mul_(2)
        z[0].zero_()
        w = z.view(-1) * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ x
    return [y, z, w, h]


@program
def losses(put):
    logits, labels = put(torch.randn(6, 5)).requires_grad_(), put(torch.tensor([0, 1, 4, 2, 2, 3]))
    target = put(torch.rand(6, 5))
    total = (
        F.cross_entropy(logits, labels, weight=put(torch.rand(5)))
        + F.cross_entropy(logits, target)
        + F.nll_loss(logits.log_softmax(1), labels)
        + F.binary_cross_entropy_with_logits(logits, target)
        + F.smooth_l1_loss(logits, target)
        + F.kl_div(logits.log_softmax(1), target, reduction="batchmean")
        + F.margin_ranking_loss(logits[:, 0], logits[:, 1], target[:, 0].sign())
        + F.cosine_similarity(logits, target).mean()
        + F.triplet_margin_loss(logits, target, target.flip(0))
    )
    total.backward()
    return [total, logits.grad]


@program
def layers(put):
    x = put(torch.randn(2, 4, 8, 8)).requires_grad_()
    found = [
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 5), mode="bilinear"),
        F.pad(x, (1, 2, 0, 1), mode="reflect"),
        F.pad(x, (1, 1), value=3.0),
        F.avg_pool2d(x, 2),
        F.max_pool2d(x, 3, stride=2, padding=1),
        F.conv_transpose2d(x, put(torch.randn(4, 2, 3, 3))),
        F.conv1d(x[:, :, 0], put(torch.randn(3, 4, 3))),
        F.instance_norm(x),
        F.layer_norm(x, (8,)),
        F.rms_norm(x, (8,)),
        F.glu(x, 1),
        F.softplus(x),
        F.hardswish(x),
        F.pixel_shuffle(x, 2),
        F.unfold(x, 3),
        F.grid_sample(x, put(torch.rand(2, 3, 3, 2)), align_corners=False),
        F.normalize(x, dim=1),
    ]
    sum(part.pow(2).mean() for part in found).backward()
    return [*found, x.grad]


@program
def attention(put):
    q, k, v = (put(torch.randn(2, 3, 7, 8)).requires_grad_() for _ in range(3))
    mask = put(torch.rand(2, 1, 7, 7) > 0.3) | put(torch.eye(7, dtype=torch.bool))
    found = [
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.3),
        F.scaled_dot_product_attention(q.double(), k.double(), v.double()).float(),
    ]
    sum(part.sum() for part in found).backward()
    return [*found, q.grad, k.grad, v.grad]


@program
def embeddings(put):
    table = nn.Embedding(9, 4, max_norm=1.0)
    bag = nn.EmbeddingBag(9, 4, mode="mean")
    at = put(torch.tensor([[1, 2, 3], [4, 4, 8]]))
    total = table(at).sum() + bag(at).pow(2).sum()
    total.backward()
    return [total, table.weight.grad, bag.weight.grad, table.weight]


@program
def batch_statistics(put):
    norm, x = nn.BatchNorm1d(4), put(torch.randn(8, 4))
    train = norm(x).sum()
    train.backward()
    before = norm.running_mean.clone()
    norm(x * 2)
    norm.eval()
    return [train, before, norm.running_mean, norm.running_var, norm(x), norm.weight.grad]


@program
def copies_and_files(put):
    x = put(torch.randn(3, 3))
    y = x * 2
    layer = nn.Linear(3, 3)
    layer.register_buffer("scale", torch.ones(3))
    layer.scale.mul_(y[0])
    with torch.no_grad():
        layer.weight.add_(y)
    twin = copy.deepcopy(layer)
    file = io.BytesIO()
    torch.save({"y": y, "layer": layer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    with torch.no_grad():
        layer.weight.zero_()
    layer.load_state_dict(loaded["layer"])
    return [
        loaded["y"],
        loaded["layer"]["weight"],
        twin.weight,
        twin.scale,
        copy.deepcopy(y),
        copy.copy(y),
        layer.weight,
    ]


@program
def values_on_the_host(put):
    x = put(torch.arange(5.0))
    y = x * 2
    host = torch.zeros(5)
    host[1:3] = y[1:3]
    return [
        torch.tensor([y.sum().item(), float(y[1]), int(y[2]), bool(y[3]), len(y)]),
        torch.tensor(y.tolist()),
        torch.tensor([value.item() for value in y]),
        torch.tensor([torch.equal(x, y), torch.allclose(x, y), 4.0 in y]),
        host,
        torch.arange(3) + torch.tensor(int(y.max())),
        torch.tensor(list(range(10))[y[1].long()]),
        torch.tensor([ord(c) for c in f"{y[2]:.2f} {y}"]),
    ]


@program
def many_at_once(put):
    parts = [put(torch.randn(n)) for n in (3, 5, 2)]
    torch._foreach_mul_(parts, 2.0)
    torch._foreach_add_(parts, torch._foreach_sqrt(torch._foreach_abs(parts)))
    norms = torch._foreach_norm(parts)
    vectors = torch.func.vmap(lambda row: row.sum() * row)(parts[0].view(3, 1))
    slope = torch.func.grad(lambda x: (x**2).sum())(parts[1])
    return [*parts, torch.stack(norms), vectors, slope, torch.nn.utils.parameters_to_vector(parts)]


@program
def made_on_the_way(put):
    """Factories whose results meet device memory later."""
    x = put(torch.randn(3, 4))
    total = torch.zeros(())
    total += x.sum()
    rows = torch.arange(3)
    mask = torch.ones(4, 4).tril().bool()
    mean = torch.zeros(4)
    for row in x:
        mean = mean * 0.9 + row
    return [total, x[rows], x.new_full((2,), 3.0) + x[0, :2], mean, mask[:3] * x, x.new_zeros(2)]
