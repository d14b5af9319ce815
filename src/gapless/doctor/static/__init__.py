"""Looks at source code without running it: the lines that would wait on a GPU, from the syntax tree.

`values` says what a name may hold, `torch_names` what torch's functions return and which of them wait, `scope`
what functions and classes of the file are, `flow` follows the values through the statements and notes the
waits, `allowances` reads the comments that allow one, and `look` does it for files. No torch is imported.
"""
