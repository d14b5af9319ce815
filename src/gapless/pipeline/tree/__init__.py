"""Batches and calls as trees: flattened into their tensors, and rebuilt.

`containers.py` knows each type of container, `flatten.py` walks a batch once, `call_tree.py` makes the
trees of calls quickly, `tensor_layout.py` says what of a tensor a graph depends on, and `move.py` puts
batches together around tensors that were moved.
"""
