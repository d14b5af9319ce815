"""Training of diffusers as its examples do it: a UNet, noise of a schedule, a moving average of the weights."""

from benchmarks.recipes.absent import stand_in_for

stand_in_for("requests", "scipy", "cv2")
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

import gapless
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
side = 16 if clock.tiny else 32
model = UNet2DModel(
    sample_size=side, in_channels=3, out_channels=3, layers_per_block=1,
    block_out_channels=(32, 64) if clock.tiny else (64, 128, 128),
    down_block_types=("DownBlock2D",) * (1 if clock.tiny else 2) + ("AttnDownBlock2D",),
    up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * (1 if clock.tiny else 2),
).to(clock.device)  # fmt: skip
average = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True)
average.to(clock.device)
noises = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, 100, 10_000)
pictures = torch.randn(64, 3, side, side)
loader = torch.utils.data.DataLoader(
    pictures, batch_size=4 if clock.tiny else 16, shuffle=True, drop_last=True
)
gapless.capture(model, optimizer, device=clock.device)  # gapless
clock.length = 8 if clock.tiny else 12
clock.start()
while True:
    for clean in loader:
        clean = clean.to(clock.device)
        noise = torch.randn_like(clean)
        times = torch.randint(0, 1000, (len(clean),), device=clock.device).long()
        noisy = noises.add_noise(clean, noise, times)
        loss = torch.nn.functional.mse_loss(model(noisy, times).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        clock.count()
