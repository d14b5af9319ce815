"""Looks at source code without running it: the lines that would wait on a GPU, from the syntax tree.

`look` reads files and makes findings, but for waits that a comment allows. `flow` goes through a file once, from
function to function: it follows `values`, what each name may hold, through `statements` and `expressions`, and
notes the waits in the `frame` of the function at hand. `bindings` bind what is assigned. `calls` says what a call
does: `methods`, `torch_calls` and `moves` by what is called, with the lists of `torch_names`, and with `hints`,
what people mean by a name, where nothing else is known. `scope` knows the functions and classes of the file and
how often they run. No torch is imported.
"""
