"""gapless beside other ways to train the same model on the same batches."""
