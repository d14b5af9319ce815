"""transformers: a callback that looks at the weights after each step."""

import os
import tempfile

from _needs import needs

needs("transformers")
needs("accelerate")
from _tiny import Rows, Tiny
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = int(os.environ.get("CASE_STEPS", 60))


class Norms(TrainerCallback):
    def __init__(self):
        self.norms = []

    def on_step_end(self, args, state, control, model=None, **kwargs):  # step
        self.norms.append(float(model.net.weight.norm()))  # waits: float
        if state.global_step > 1e9:  # harmless: a number of the host
            control.should_training_stop = True


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=STEPS, report_to=[], save_strategy="no", logging_strategy="no", per_device_train_batch_size=8, disable_tqdm=True)
    Trainer(Tiny(), arguments, train_dataset=Rows(STEPS * 8), callbacks=[Norms()]).train()  # waits: bool, 2 a step, static no; waits: item, 2 a step, static no
