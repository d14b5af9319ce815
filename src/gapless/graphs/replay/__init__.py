"""A graph of one kind of call, and what its replays leave where the eager step would.

`step_graph.py` launches; `graph_gradients.py`, `kept_tensors.py`, `batch_changes.py` and `results.py` hand out
what it made; `step_guards.py` says what has to hold before.
"""
