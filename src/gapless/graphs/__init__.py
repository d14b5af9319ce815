"""Captured steps: a whole training step launched as one CUDA graph for each kind of batch.

`captured_step.py` is the page to begin with. `capture.py` offers it to any loop. `guards.py` says what a
guard is; `modes.py`, `optimizers.py` and `weights.py` have the guards.
"""
