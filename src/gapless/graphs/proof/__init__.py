"""Capture a step, and show that the graph does what the step does.

`trial.py` captures and tries a graph, `same_results.py` compares it with eager runs; `device_state.py`,
`python_side.py` and `snapshot.py` put back what a try has changed.
"""
