"""Capture a step, and show that the graph does what the step does.

`step_capture.py` captures a step, `trial.py` tries its graph, `same_results.py` runs it beside the step as
written, and `proof_verdict.py` judges what both left; `device_state.py`, `python_side.py` and `snapshot.py` put back
what a try has changed.
"""
