"""transformers: a Trainer whose `compute_loss` reads."""

import os
import tempfile

import torch
from _needs import needs

needs("transformers")
needs("accelerate")
from _tiny import Rows, Tiny
from transformers import Trainer, TrainingArguments

STEPS = int(os.environ.get("CASE_STEPS", 60))


class Reading(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):  # step
        outputs = model(**inputs)
        entropy = torch.distributions.Categorical(logits=outputs["logits"], validate_args=False).entropy()  # harmless: not checked
        self.last_entropy = entropy.mean().item()  # waits: item
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=STEPS, report_to=[], save_strategy="no", logging_strategy="no", per_device_train_batch_size=8, disable_tqdm=True)
    Reading(Tiny(), arguments, train_dataset=Rows(STEPS * 8)).train()  # waits: bool, 2 a step, static no; waits: item, 2 a step, static no
