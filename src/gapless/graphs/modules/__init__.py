"""A module as one node of autograd: a graph of two segments, forward and backward.

`module_graph.py` launches them, `run_again.py` does what no launch can, `module_trial.py` captures and tries
them, `module_audit.py` compares them with the module again. `seen_calls.py` sees calls as written, and
`gradient_paths.py` says which module cannot be one node.
"""
