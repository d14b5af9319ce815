"""A diffusion model: a small U-Net learns the noise in images, with an average of its weights."""

from copy import deepcopy

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.models.denoiser import NUM_TIMES, Noise, UNet


TITLE = "DDPM: U-Net, times drawn on the host, EMA, loss in the progress bar each step"
STEPS = 40


class EMA:
    """Moves the weights of an average towards those of a model."""

    def __init__(self, beta):
        self.beta = beta

    def step_ema(self, ema_model, model):
        """Take a step."""
        for mean, weight in zip(ema_model.parameters(), model.parameters(), strict=True):
            mean.data = mean.data * self.beta + (1 - self.beta) * weight.data


def make_images(count, side):
    """Return smooth images."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 4, 4, generator=draw) * 2.0 - 1.0
    return TensorDataset(F.interpolate(coarse, size=(side, side), mode="bilinear"))


@torch.no_grad()
def sample(model, diffusion, shape, device, num_times):
    """Return images made from noise, in a few of all steps."""
    model.eval()
    x = torch.randn(shape, device=device)
    for i in reversed(range(0, NUM_TIMES, NUM_TIMES // num_times)):
        t = torch.full((shape[0],), i, device=device)
        noise = model(x, t)
        x = (x - diffusion.noise_share[i] * noise) / diffusion.image_share[i].clamp(min=0.1)
    model.train()
    return x.clamp(-1, 1)


def train(args):
    """Train; return the model and the average."""
    device = args.device
    width, batch_size, side = (8, 2, 16) if args.is_small else (64, 16, 32)
    images = make_images(args.steps * batch_size, side)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    dataloader = DataLoader(images, batch_size, shuffle=True, **loader_args)
    model = UNet(width).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=3e-4)
    mse = nn.MSELoss()
    diffusion = Noise(device)
    ema, ema_model = EMA(0.995), deepcopy(model).eval().requires_grad_(False)
    for _ in args.epochs:
        for (images,) in args.progress(dataloader):
            images = images.to(device)
            t = torch.randint(low=1, high=NUM_TIMES, size=(images.shape[0],)).to(device)
            x_t, noise = diffusion.added(images, t)
            predicted_noise = model(x_t, t)
            loss = mse(noise, predicted_noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.step_ema(ema_model, model)
            args.log(mse=loss.item())
        sampled = sample(ema_model, diffusion, (4, 3, side, side), device, num_times=4)
        args.log(brightness=sampled.mean().item())
    return model, ema_model
