"""The Transformer: attention, layers, loss and beam search."""
