"""Cases that fail today, and what was seen: whoever mends one deletes its row."""

from __future__ import annotations


NOT_YET: dict[str, str] = {
    "objects-number_is_an_argument": "no line says all of ('argument 'n'', 'int', 'new in each call'): captured 0 graphs in 0.0 s, 0 steps replayed, 10 ran as written",
    "batches-pyg_batch-step": "PyG asks `is_cuda`, so on the simulated device it makes `batch` and `ptr` on the host",
    "batches-pyg_batch-in_place": "PyG asks `is_cuda`, so on the simulated device it makes `batch` and `ptr` on the host",
    "optimizers-adadelta_by_epochs-in_place": "11 launches an update, one more than ten",
    "optimizers-adadelta_by_epochs-step": "14 launches a step, 11 of them of the update",
    "optimizers-adadelta_each_step-in_place": "11 launches an update, one more than ten",
    "run-rank_of_two": "rank 1 says nothing: the first of the ranks speaks for all",
}
