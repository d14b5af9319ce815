"""torch's encoder compares the mask with a causal one unless it is told."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = "cuda" if torch.cuda.is_available() else "cpu"


class LanguageModel(nn.Module):
    def __init__(self, tell):
        super().__init__()
        self.tell = tell
        self.table = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens):
        x = self.table(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)  # harmless: made on the device
        if self.tell:
            x = self.encoder(x, mask=mask, is_causal=True)  # harmless: it is told
        else:
            x = self.encoder(x, mask=mask)  # waits: bool, static no
        return self.head(x)


models = nn.ModuleList([LanguageModel(True), LanguageModel(False)]).to(device)
optimizer = torch.optim.AdamW(models.parameters())
for _ in range(STEPS):  # step
    tokens = torch.randint(50, (4, 12), device=device)
    loss = sum(
        nn.functional.cross_entropy(m(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        for m in models
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
