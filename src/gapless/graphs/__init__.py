"""Captured steps: a whole training step launched as one CUDA graph for each kind of call.

`captured_step.py` is the page to begin with; `capture.py` offers it to any loop. Each kind of call has one
record (`entry.py`), whose states are a table (`states.py`). A call that has no graph runs eagerly and is
watched (`graph_learning.py`, `reads`, `updates`), then captured and proved (`proof`); a call that has one is
compared with what its graph bakes in (`reads`) and replayed (`replay`). `account.py` says what may be
spent on this, `audit.py` when a graph is compared with its step again, `refusal.py` what is never captured.

`modules` and `in_place` do the same for objects where they stand, `ranks` for several processes.

Nothing in this room blocks the host, but where a docstring says so (`Sync:`), and where the user's own code does.
"""
