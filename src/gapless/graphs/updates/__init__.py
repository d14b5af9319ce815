"""Updates of optimizers: whether a graph holds them, and what is called beside it instead.

`update_rules.py` decides, `update_outside.py` keeps the updates of a graph, `quick_updates.py` calls the
operations of a known optimizer from lists.
"""
