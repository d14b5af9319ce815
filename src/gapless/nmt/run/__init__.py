"""A training run: its parts, its epochs and its scores, and translating with its model.

`training_run.py` assembles a run, `trainer.py` takes it to its end, and `translator.py` uses its model.
"""
