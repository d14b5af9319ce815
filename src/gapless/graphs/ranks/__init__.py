"""What several processes do together before they capture, replay or audit.

`calls_of_ranks.py` agrees on calls, `consent_of_ranks.py` on captures, `audits_of_ranks.py` on audits.
"""
