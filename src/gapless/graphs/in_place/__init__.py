"""Objects captured where they stand: the very object stays in the loop.

`capture_in_place.py` is the way in; `module_in_place.py` captures the forward and backward pass of a module,
`optimizer_in_place.py` the step of an optimizer.
"""
