"""Sentences of many lengths, padded to some length in each batch."""

import argparse
import math

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--pad-to", type=int, default=8)
args = parser.parse_args()
device = torch.device(args.device)

torch.manual_seed(0)
num_symbols = 20
# Sentences of 4 to 40 symbols; the label says whether 1 stands there more often than 2.
# Each batch has sentences of about one length.
sentences = [torch.randint(1, num_symbols, (int(size),)) for size in torch.randint(4, 41, (640,))]
labels = torch.tensor([int((words == 1).sum() > (words == 2).sum()) for words in sentences])


def collate(batch):
    longest = max(len(words) for words, _ in batch)
    length = math.ceil(longest / args.pad_to) * args.pad_to
    padded = [F.pad(words, (0, length - len(words))) for words, _ in batch]
    return torch.stack(padded), torch.stack([label for _, label in batch])


class Classifier(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = torch.nn.Embedding(num_symbols, width, padding_idx=0)
        self.mix = torch.nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.out = torch.nn.Linear(width, 2)

    def forward(self, padded):
        is_word = (padded != 0).unsqueeze(1)
        hidden = self.mix(self.embed(padded).transpose(1, 2)).relu() * is_word
        return self.out(hidden.sum(2) / is_word.sum(2))


examples = sorted(zip(sentences, labels, strict=True), key=lambda example: len(example[0]))
batches = [examples[start : start + 16] for start in range(0, len(examples), 16)]
loader = DataLoader(batches, batch_size=None, shuffle=True, collate_fn=collate)
model = Classifier().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


@gapless.capture(device=device)
def train_step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for x, y in gapless.prefetch(loader, device):
        losses.add(train_step(x, y))
    print(f"epoch {epoch}: loss {losses.mean():.12f}")
print(train_step.report)
