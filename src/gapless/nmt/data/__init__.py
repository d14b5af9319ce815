"""Parallel text on its way to batches: corpus, vocabulary, token ids, layouts of batches.

`corpus.py` reads text, `layout.py` says what a layout is, and `sampler.py` gives an epoch its batches.
"""
