"""Runs one workload under several plans: compares bits, measures times, recommends a plan.

`verify_plan.py` and `compare_plans.py` are what users call. `recorded_run.py` takes a run whose bits are
compared, `bench.py` times the plans in turns, `ranking.py` recommends one.
"""
