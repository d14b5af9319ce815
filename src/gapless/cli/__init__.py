"""The command line: parses, calls, prints, exits.

`main.py` has the list of commands; the command NAME is `NAME_command.py`, and what the doctor writes
`doctor_reports.py`. They share options (`shared_options.py`), workloads, what is refused before a command begins
(`requirements.py`), output, progress, signals and ranks.
"""
