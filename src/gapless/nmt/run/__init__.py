"""A training run: its settings, its folder, its epochs and its scores.

`config.py` has every setting, `training_run.py` assembles a run, and `trainer.py` takes it to its end.
"""
