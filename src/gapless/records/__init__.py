"""Plain records of what is measured and printed. No torch.

A figure is written into a record where it is measured, and printed from the same record. Conclusions that
need only figures are here as well: `bottleneck.py` names what limits the speed of a loop, `verification.py`
says whether runs agree.
"""
