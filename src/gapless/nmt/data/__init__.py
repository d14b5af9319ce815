"""Parallel text on its way to batches: corpus, vocabulary, token ids, layouts of batches."""
