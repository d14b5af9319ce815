"""Variants of a user's script: what it would gain, measured by `gapless doctor --try`.

Each puts one change into a running script and takes it out again. The doctor measures steps a second
with it and without it in turns; it knows of no variant, the command line hands them in.
"""
