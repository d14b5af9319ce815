"""Speech as recipes of CTC have it: convolutions, a GRU, batches of about one length, padded to few lengths."""

import torch
from torch.nn import functional as F

import gapless
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
width = 32 if clock.tiny else 256
buckets = (64, 96) if clock.tiny else (128, 192, 256, 320)


class Recognizer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.front = torch.nn.Sequential(
            torch.nn.Conv1d(40, width, 5, stride=2, padding=2), torch.nn.BatchNorm1d(width), torch.nn.ReLU(),
            torch.nn.Conv1d(width, width, 5, stride=2, padding=2), torch.nn.BatchNorm1d(width), torch.nn.ReLU(),
        )  # fmt: skip
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 4)
        self.out = torch.nn.Linear(width, 30)

    def forward(self, sound, lengths):
        hidden = self.front(sound).transpose(1, 2)
        mask = torch.arange(hidden.shape[1], device=hidden.device) >= lengths.unsqueeze(1)
        return self.out(self.layers(hidden, src_key_padding_mask=mask)).log_softmax(2)


batches = []
for number in range(16):
    longest = buckets[number % len(buckets)]
    lengths = torch.randint(longest - 30, longest, (16,)) // 4
    words = torch.randint(1, 30, (16, 8))
    batches.append((torch.randn(16, 40, longest), lengths, words, torch.full((16,), 8)))
model = Recognizer().to(clock.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10**6)
gapless.capture(model, optimizer, device=clock.device)  # gapless
clock.length = 16 if clock.tiny else 32
clock.start()
while True:
    for sound, lengths, words, num_words in batches:
        sound, lengths = sound.to(clock.device), lengths.to(clock.device)
        scores = model(sound, lengths)
        loss = F.ctc_loss(
            scores.transpose(0, 1), words.to(clock.device), lengths, num_words.to(clock.device)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        clock.count()
