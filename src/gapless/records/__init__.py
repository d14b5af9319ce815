"""Plain records: what everybody measures and everybody prints. No torch.

A figure is written into a record where it is measured, and printed from the same record.
"""
