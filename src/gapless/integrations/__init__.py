"""Frameworks whose loops are captured where they stand, each by one call.

    gapless.integrations.transformers   capture_trainer: Hugging Face's Trainer and Seq2SeqTrainer
    gapless.integrations.accelerate     capture_prepared: what Accelerator.prepare returned

A framework is imported by the module of its name alone. What all of them share:

    announcement        the lines that say once what is done and what is not
    attention_masks     whether a batch has padding, which models of transformers read from its mask
    batches             batches that an Accelerator's loaders move without a wait
    losses              the filter of a Trainer's logged losses, without a wait
"""
