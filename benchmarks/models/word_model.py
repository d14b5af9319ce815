"""A word language model with an LSTM."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F


class WordModel(nn.Module):
    """Embedding, LSTM and output layer with tied weights."""

    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, depth, dropout=0.2)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, words, hidden):
        """Return log probabilities, [T * B, vocabulary], of words, [T, B], and the new hidden state."""
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).flatten(0, 1), dim=1), hidden

    def init_hidden(self, size):
        """Return a hidden state of zeros."""
        weight = self.decoder.weight
        shape = (self.rnn.num_layers, size, self.rnn.hidden_size)
        return weight.new_zeros(shape), weight.new_zeros(shape)


def repackage_hidden(hidden):
    """Return the hidden state without its history."""
    return tuple(state.detach() for state in hidden)
