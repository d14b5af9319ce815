"""Cases that fail today, and what was seen: whoever mends one deletes its row."""

from __future__ import annotations


NOT_YET: dict[str, str] = {
    "optimizers-adadelta_by_epochs-in_place": "11 launches an update, one more than ten",
    "optimizers-adadelta_by_epochs-step": "14 launches a step, 11 of them of the update",
    "optimizers-adadelta_each_step-in_place": "11 launches an update, one more than ten",
}
