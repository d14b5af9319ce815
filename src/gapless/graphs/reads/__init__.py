"""What a step reads from Python: found, watched during eager runs, compared before each replay.

`code_reads.py` says what code names, `reach.py` what that leads to, `host_watch.py` what an eager run
read and changed on the host, `touched.py` which memory of the device it used. `read_guards.py` and
`weight_guards.py` keep what was read and compare it later.
"""
