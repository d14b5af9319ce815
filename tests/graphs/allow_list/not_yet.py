"""Cases whose verdict is not met yet, each with the reason in a word; the one list of them.

A case leaves the list with the change that meets it.
"""

from __future__ import annotations


# What the code does not name is compared.
_GUARDED = "guarded"

NOT_YET = {"other_modules_of_a_module_dict": _GUARDED}
