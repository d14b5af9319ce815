"""The training loop: takes the batches of an epoch through a step as a plan says."""
