"""Models that train a few steps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from programs.registry import program


def train(put, model, optimizer, batches, loss_of, *, clip=None, accumulate=1, to_none=True):
    losses = []
    for number, batch in enumerate(batches):
        loss = loss_of(model, *map(put, batch)) / accumulate
        loss.backward()
        losses.append(loss.detach())
        if (number + 1) % accumulate:
            continue
        if clip is not None:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
    return [torch.stack(losses), *model.parameters(), *model.buffers()]


def regression(num=4, features=6):
    return [(torch.randn(8, features), torch.randn(8, 1)) for _ in range(num)]


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 1))


def squared(model, x, y):
    return F.mse_loss(model(x), y)


@program
def sgd_with_momentum(put):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return train(put, model, optimizer, regression(), squared)


@program
def sgd_over_lists(put):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return train(put, model, optimizer, regression(), squared, clip=0.5)


@program
def adam_with_zeroed_gradients(put):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    return train(put, model, optimizer, regression(), squared, to_none=False, clip=1.0)


@program
def adamw_fused(put):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    return train(put, model, optimizer, regression(), squared, clip=1.0)


@program
def adam_over_lists_with_accumulation(put):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
    return train(put, model, optimizer, regression(6), squared, accumulate=2)


@program
def other_optimizers(put):
    found = []
    for kind in (
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.NAdam,
    ):
        model = mlp()
        found += train(put, model, kind(model.parameters()), regression(3), squared)
    return found


@program
def learning_rate_schedules(put):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    losses = []
    for x, y in regression():
        losses.append(squared(model, put(x), put(y)))
        losses[-1].backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return [torch.stack(losses), *model.parameters()]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, dropout):
        b, t, d = x.shape
        split = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(heads.transpose(1, 2).reshape(b, t, d))
        return x + F.dropout(self.ffn(self.norm2(x)), dropout)


class LanguageModel(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.tokens, self.places = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(16, 2) for _ in range(2)])

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, self.dropout)
        return x @ self.tokens.weight.t()


def sentences(num=3):
    ids = [torch.randint(0, 20, (3, 9)) for _ in range(num)]
    return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in ids]


def next_token(model, ids, targets):
    logits = model(ids)
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.1
    )


@program
def transformer(put):
    model = LanguageModel()
    return train(
        put, model, torch.optim.AdamW(model.parameters()), sentences(), next_token, clip=1.0
    )


@program
def transformer_with_dropout(put):
    model = LanguageModel(dropout=0.2)
    return train(put, model, torch.optim.Adam(model.parameters()), sentences(), next_token)


@program
def torchs_own_transformer_layer(put):
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    data = [(torch.randn(3, 5, 16), torch.randn(3, 5, 16)) for _ in range(3)]
    return train(put, model, torch.optim.Adam(model.parameters()), data, squared)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )

    def forward(self, x):
        return self.body(x)


def pictures(num=3):
    return [(torch.randn(4, 3, 12, 12), torch.randint(0, 5, (4,))) for _ in range(num)]


@program
def convolutions(put):
    model = ConvNet()
    found = train(
        put,
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        pictures(),
        lambda model, x, y: F.cross_entropy(model(x), y),
    )
    model.eval()
    with torch.inference_mode():
        found.append(model(put(torch.ones(2, 3, 12, 12))))
    return found


@program
def convolutions_channels_last(put):
    model = ConvNet().to(memory_format=torch.channels_last)

    def loss_of(model, x, y):
        return F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)

    return train(put, model, torch.optim.SGD(model.parameters(), lr=0.1), pictures(), loss_of)


def recurrent(put, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = kind(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    model = Net()
    data = [(torch.randn(4, 5, 6), torch.randn(4, 1)) for _ in range(3)]
    found = train(put, model, torch.optim.Adam(model.parameters()), data, squared, clip=1.0)
    with torch.no_grad():
        return [*found, model(put(data[0][0]))]


@program
def long_short_term_memory(put):
    return recurrent(put, nn.LSTM)


@program
def gated_recurrent_units(put):
    return recurrent(put, nn.GRU)


@program
def plain_recurrent_network(put):
    return recurrent(put, nn.RNN)


@program
def autocast_to_bfloat16(put):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_of(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return squared(model, x, y)

    return train(put, model, optimizer, regression(), loss_of, clip=1.0)


@program
def autocast_transformer(put):
    model = LanguageModel()

    def loss_of(model, ids, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return next_token(model, ids, targets)

    return train(put, model, torch.optim.Adam(model.parameters()), sentences(), loss_of)


@program
def activation_checkpoints(put):
    model = mlp()

    def loss_of(model, x, y):
        return F.mse_loss(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False), y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(put, model, optimizer, regression(), loss_of)


@program
def averaged_weights(put):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(put, model, optimizer, regression(2), squared)
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(2):
        train(put, model, optimizer, regression(1), squared)
        averaged.update_parameters(model)
    return list(averaged.parameters())


@program
def gradients_of_gradients(put):
    x = put(torch.randn(5)).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first, second]


@program
def a_function_with_a_backward_of_its_own(put):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x > 0)

    x = put(torch.randn(6)).requires_grad_()
    Clipped.apply(x).pow(2).sum().backward()
    return [x.grad]
