"""Cases whose verdict is not met yet, each with the reason in a word; the one list of them.

A case leaves the list with the change that meets it.
"""

from __future__ import annotations


# What is read is not compared, and nothing is said.
_STALE = "stale"

# It is followed, with the right bits, and is to be refused.
_FOLLOWED = "followed"

# What the code does not name is compared.
_GUARDED = "guarded"

NOT_YET = {
    "fields_of_a_format": _STALE,
    "memory_map": _STALE,
    "flags_of_a_numpy_array": _STALE,
    "decimal_context": _STALE,
    "number_of_threads": _STALE,
    "seed_of_torch": _STALE,
    "seed_of_a_generator": _STALE,
    "item_of_a_numpy_array": _FOLLOWED,
    "mean_of_a_numpy_array": _FOLLOWED,
    "other_modules_of_a_module_dict": _GUARDED,
}
