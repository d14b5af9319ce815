"""The Temporal Fusion Transformer of pytorch-forecasting under Lightning, on made-up series."""

import lightning.pytorch as pl
import torch

from benchmarks.recipes.absent import stand_in_for

stand_in_for("pandas", "scipy", "sklearn", "matplotlib")
from pytorch_forecasting.metrics import QuantileLoss
from pytorch_forecasting.models.temporal_fusion_transformer import TemporalFusionTransformer

from benchmarks.recipes.clock import clock
from gapless.integrations.lightning import GaplessCallback


torch.manual_seed(1)
past, future, rows = 24, 6, 16 if clock.tiny else 64
names = ["time", "price", "sales"]
model = TemporalFusionTransformer(
    hidden_size=16, max_encoder_length=past, x_reals=names, time_varying_reals_encoder=names,
    time_varying_reals_decoder=["time", "price"], loss=QuantileLoss(), learning_rate=1e-3,
    optimizer="adam", logging_metrics=torch.nn.ModuleList(), output_transformer=lambda data: data["prediction"],
)  # fmt: skip


def batch():
    x = {
        "encoder_cat": torch.zeros(rows, past, 0, dtype=torch.long),
        "encoder_cont": torch.randn(rows, past, 3),
        "encoder_target": torch.randn(rows, past),
        "encoder_lengths": torch.full((rows,), past),
        "decoder_cat": torch.zeros(rows, future, 0, dtype=torch.long),
        "decoder_cont": torch.randn(rows, future, 3),
        "decoder_target": torch.randn(rows, future),
        "decoder_lengths": torch.full((rows,), future),
        "target_scale": torch.tensor([[0.0, 1.0]]).repeat(rows, 1),
    }
    return x, (torch.randn(rows, future), None)


class Count(pl.Callback):
    def on_train_batch_end(self, *args):
        clock.count()


loader = torch.utils.data.DataLoader([batch() for _ in range(16)], batch_size=None)
callbacks = [Count()]
callbacks.append(GaplessCallback(quiet=True))  # gapless
trainer = pl.Trainer(
    accelerator="gpu" if clock.device.type == "cuda" else "cpu", devices=1, max_epochs=10**6, callbacks=callbacks,
    logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False, gradient_clip_val=0.1,
)  # fmt: skip
clock.length = 8 if clock.tiny else 12
clock.start()
trainer.fit(model, loader)
