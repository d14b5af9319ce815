"""The command line: parses, calls, prints, exits.

`main.py` has the list of commands; the command NAME is `NAME_command.py`.
"""
