"""Plain records: what everybody measures and everybody prints. No torch.

A figure is written into a record where it is measured, and printed from the same record. Conclusions that
need figures alone stand here as well: `bottleneck.py` names what holds a loop back, `verification.py` says
whether runs agree.
"""
