"""Translation: an encoder and decoder, trained as the annotated Transformer is."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


TITLE = "annotated Transformer: label smoothing, Noam schedule, losses summed up in Python"
STEPS = 40

PADDING, START = 0, 1


class Attention(nn.Module):
    """Attention with several heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, memory, mask):
        """Return features of x, [B, T, width], which looks at memory where the mask is true."""
        query, key, value = (
            linear(features).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, features in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        shares = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9).softmax(dim=-1)
        return self.out((self.dropout(shares) @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention to itself, to a memory in a decoder, and a feed-forward block, behind norms."""

    def __init__(self, width, heads, is_decoder):
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads) if is_decoder else None
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if is_decoder else 2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask, memory=None, memory_mask=None):
        """Return features, [B, T, width]."""
        normed = self.norms[0](x)
        x = x + self.dropout(self.attention(normed, normed, mask))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norms[1](x), memory, memory_mask))
        return x + self.dropout(self.feed_forward(self.norms[-1](x)))


class Translator(nn.Module):
    """An encoder and a decoder; the generator behind them is called by the loss."""

    def __init__(self, vocabulary, width, depth, heads, length):
        super().__init__()
        self.src_embed, self.tgt_embed = (nn.Embedding(vocabulary, width) for _ in range(2))
        self.positions = nn.Parameter(torch.empty(length, width))
        self.encoder = nn.ModuleList(Layer(width, heads, False) for _ in range(depth))
        self.decoder = nn.ModuleList(Layer(width, heads, True) for _ in range(depth))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.generator = nn.Sequential(nn.Linear(width, vocabulary), nn.LogSoftmax(dim=-1))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt, src_mask, tgt_mask):
        """Return features, [B, T, width]; masks are true where one may look."""
        scale = math.sqrt(self.positions.shape[1])
        memory = self.src_embed(src) * scale + self.positions[: src.shape[1]]
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.encoder_norm(memory)
        x = self.tgt_embed(tgt) * scale + self.positions[: tgt.shape[1]]
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        return self.decoder_norm(x)


class LabelSmoothing(nn.Module):
    """The divergence from smoothed targets."""

    def __init__(self, size, smoothing):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.size, self.smoothing = size, smoothing

    def forward(self, x, target):
        """Return the loss of log probabilities, [N, size]."""
        smoothed = torch.full_like(x, self.smoothing / (self.size - 2))
        smoothed.scatter_(1, target.unsqueeze(1), 1.0 - self.smoothing)
        smoothed[:, PADDING] = 0
        padded = torch.nonzero(target == PADDING)
        if padded.dim() > 0:
            smoothed.index_fill_(0, padded.squeeze(-1), 0.0)
        return self.criterion(x, smoothed.detach())


class Batch:
    """Sentences with their masks, on the device."""

    def __init__(self, src, tgt):
        self.src, self.src_mask = src, (src != PADDING).unsqueeze(1)
        self.tgt, self.tgt_y = tgt[:, :-1], tgt[:, 1:]
        size = self.tgt.shape[1]
        past = torch.ones(1, size, size, dtype=torch.bool, device=tgt.device).tril()
        self.tgt_mask = (self.tgt != PADDING).unsqueeze(1) & past
        self.ntokens = (self.tgt_y != PADDING).sum()


def make_pairs(count, vocabulary, length):
    """Return pairs of padded sentences; the target is the source, reversed."""
    draw = torch.Generator().manual_seed(0)
    sentences = torch.randint(2, vocabulary, (count, length - 1), generator=draw)
    sizes = torch.randint(length // 3, length, (count,), generator=draw).tolist()
    pairs = []
    for sentence, size in zip(sentences, sizes, strict=True):
        src, tgt = torch.full((length,), PADDING), torch.full((length + 1,), PADDING)
        src[:size], tgt[0] = sentence[:size], START
        tgt[1 : size + 1] = sentence[:size].flip(0)
        pairs.append((src, tgt))
    return pairs


def trim(pairs):
    """Return a batch that is as long as its longest sentence."""
    src, tgt = (torch.stack(side) for side in zip(*pairs, strict=True))
    size = int((src != PADDING).sum(dim=1).max())
    return src[:, :size], tgt[:, : size + 1]


def rate(step, width, warmup):
    """Return Noam's learning rate."""
    step = max(step, 1)
    return width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def train(args):
    """Train; return the model."""
    device = args.device
    vocabulary, width, depth, heads = (40, 16, 1, 2) if args.is_small else (8000, 512, 6, 8)
    batch_size, length, valid_batches = (2, 8, 1) if args.is_small else (32, 72, 2)
    pairs = make_pairs((args.steps + valid_batches) * batch_size, vocabulary, length)
    collate_fn, train_pairs = trim if args.is_changing else None, pairs[: args.steps * batch_size]
    train_loader = DataLoader(train_pairs, batch_size, shuffle=True, collate_fn=collate_fn)
    valid_loader = DataLoader(pairs[args.steps * batch_size :], batch_size)
    model = Translator(vocabulary, width, depth, heads, length).to(device)
    criterion = LabelSmoothing(vocabulary, smoothing=0.1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.9, 0.98), eps=1e-9)
    lr_scheduler = LambdaLR(optimizer, lambda step: rate(step, width, warmup=400))

    def loss_compute(out, y, norm):
        x = model.generator(out).flatten(0, 1)
        loss = criterion(x, y.flatten()) / norm
        return loss.detach() * norm, loss

    for _ in args.epochs:
        model.train()
        total_tokens, total_loss = 0, 0.0
        for i, (src, tgt) in enumerate(args.progress(train_loader)):
            batch = Batch(src.to(device), tgt.to(device))
            out = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            loss, loss_node = loss_compute(out, batch.tgt_y, batch.ntokens)
            loss_node.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            lr_scheduler.step()
            total_loss += loss
            total_tokens += batch.ntokens
            if i % 10 == 0:
                args.log(loss=(loss / batch.ntokens).item(), lr=optimizer.param_groups[0]["lr"])
        args.log(epoch_loss=(total_loss / total_tokens).item())
        model.eval()
        with torch.no_grad():
            for src, tgt in valid_loader:
                batch = Batch(src.to(device), tgt.to(device))
                out = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
                loss, _ = loss_compute(out, batch.tgt_y, batch.ntokens)
                args.log(valid_loss=(loss / batch.ntokens).item())
    return model
