"""Cases that fail today, and what was seen: whoever mends one deletes its row.

A row is the name of a test, with the parameters of a case in brackets, or without for all of them.
"""

from __future__ import annotations


NOT_YET = {}
