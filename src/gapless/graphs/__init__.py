"""Captured steps: a whole training step launched as one CUDA graph for each kind of call.

`captured_step.py` is the page to begin with. `capture.py` offers it to any loop. `host_watch.py` and
`touched.py` see what runs as written do, and `variants.py` keeps it for each kind of call; `trial.py`
captures a step and lets the graph prove itself; `step_guards.py` says what has to hold before a replay.

`in_place.py` captures objects where they stand: `module_in_place.py` the forward and backward pass of a
module, `optimizer_in_place.py` the step of an optimizer.
"""
