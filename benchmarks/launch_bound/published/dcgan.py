"""A GAN: a deep convolutional generator against a discriminator."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


TITLE = "DCGAN: two models, two optimizers, five numbers read each step"
STEPS = 100

LATENT = 100


def make_generator(width):
    """Return a network from noise, [B, LATENT, 1, 1], to images, [B, 3, 32, 32]."""
    layers, num_in = [], LATENT
    for num_out, stride, padding in ((4 * width, 1, 0), (2 * width, 2, 1), (width, 2, 1)):
        layers += [
            nn.ConvTranspose2d(num_in, num_out, 4, stride, padding, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
        ]
        num_in = num_out
    return nn.Sequential(*layers, nn.ConvTranspose2d(num_in, 3, 4, 2, 1, bias=False), nn.Tanh())


def make_discriminator(width):
    """Return a network from images to how real they are, [B, 1, 1, 1]."""
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for number in (width, 2 * width):
        layers += [
            nn.Conv2d(number, 2 * number, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * number),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False), nn.Sigmoid())


def weights_init(module):
    """Draw the weights as the paper says."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def make_images(count):
    """Return smooth images."""
    draw = torch.Generator().manual_seed(1)
    coarse = torch.rand(count, 3, 4, 4, generator=draw) * 2.0 - 1.0
    return TensorDataset(nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear"))


def train(args):
    """Train; return both models."""
    device = args.device
    width, batch_size = (8, 4) if args.is_small else (64, 128)
    images = make_images(args.steps * batch_size)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    dataloader = DataLoader(images, batch_size, shuffle=True, **loader_args)
    net_g, net_d = make_generator(width).to(device), make_discriminator(width).to(device)
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(batch_size, LATENT, 1, 1, device=device)
    optimizer_d = optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in args.epochs:
        for (image,) in args.progress(dataloader):
            # The discriminator: real images, and then made ones.
            net_d.zero_grad()
            real = image.to(device)
            label = torch.full((real.shape[0],), 1.0, device=device)
            output = net_d(real).view(-1)
            err_d_real = criterion(output, label)
            err_d_real.backward()
            d_x = output.mean().item()
            noise = torch.randn(real.shape[0], LATENT, 1, 1, device=device)
            fake = net_g(noise)
            label.fill_(0.0)
            output = net_d(fake.detach()).view(-1)
            err_d_fake = criterion(output, label)
            err_d_fake.backward()
            d_g_z1 = output.mean().item()
            err_d = err_d_real + err_d_fake
            optimizer_d.step()
            # The generator.
            net_g.zero_grad()
            label.fill_(1.0)
            output = net_d(fake).view(-1)
            err_g = criterion(output, label)
            err_g.backward()
            d_g_z2 = output.mean().item()
            optimizer_g.step()
            args.log(err_d=err_d.item(), err_g=err_g.item(), d_x=d_x, z1=d_g_z1, z2=d_g_z2)
        with torch.no_grad():
            args.log(brightness=net_g(fixed_noise).mean().item())
    return net_g, net_d
