"""Frameworks whose loops are captured where they stand.

    gapless.integrations.transformers   capture_trainer: Hugging Face's Trainer and Seq2SeqTrainer
    gapless.integrations.accelerate     capture_prepared: what Accelerator.prepare returned
    gapless.integrations.lightning      GaplessCallback: Lightning's Trainer, automatic optimization

Each imports its framework, and nothing else here does so when it is imported. What they share:

    announcement        the lines that say once what is done and what is not
    attention_masks     whether a batch has padding, which models of transformers read from its mask
    batches             batches of Accelerate's loaders go to the device without a wait
    packed_positions    whether positions are of several sequences, which models of transformers read
    losses              the losses that a Trainer logs are filtered without a wait
    framework_private   private names of the frameworks that are used, once each
    lightning_logs      what a step of Lightning logs is noted, and logged after the step
    lightning_step      a step of Lightning's automatic optimization as one function, and which can be captured
"""
