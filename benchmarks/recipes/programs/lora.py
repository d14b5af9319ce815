"""LoRA of peft on a small Llama of random weights, under the Trainer of transformers."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gapless.integrations.transformers
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
width = 64 if clock.tiny else 512
config = LlamaConfig(
    vocab_size=1000,
    hidden_size=width,
    intermediate_size=2 * width,
    num_hidden_layers=2 if clock.tiny else 8,
    num_attention_heads=4,
)
model = get_peft_model(
    LlamaForCausalLM(config),
    LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
rows = torch.randint(1000, (256, 32 if clock.tiny else 128))
data = [{"input_ids": row, "labels": row} for row in rows]


class Count(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        clock.count()


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, max_steps=10**6, report_to=[], save_strategy="no",
        logging_steps=50, disable_tqdm=True, lr_scheduler_type="constant",
    ),
    train_dataset=data,
    callbacks=[Count()],
)  # fmt: skip
gapless.integrations.transformers.capture_trainer(trainer)  # gapless
clock.length = 10 if clock.tiny else 16
clock.start()
trainer.train()
