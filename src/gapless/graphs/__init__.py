"""Captured steps: a whole training step launched as one CUDA graph for each kind of batch.

`captured_step.py` is the page to begin with. `capture.py` offers it to any loop. `guards.py` says what a
guard is; `mode_guards.py`, `optimizer_guards.py` and `weight_guards.py` have the guards.
"""
