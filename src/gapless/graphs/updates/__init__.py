"""Updates of optimizers: whether a graph holds them, and what is called beside it instead.

`update_rules.py` decides, `update_outside.py` keeps the updates of a graph, `rate_outside.py` what replays call
of an update that takes a number of the host.
"""
