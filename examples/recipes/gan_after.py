"""A GAN: two models, two optimizers, two updates a step."""

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gapless


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
device = torch.device(args.device)

torch.manual_seed(0)
angles = torch.rand(640) * 2 * torch.pi
points = torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(640, 2)
loader = DataLoader(points, batch_size=32, shuffle=True)
generator = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
).to(device)
critic = torch.nn.Sequential(
    torch.nn.Linear(2, 32), torch.nn.LeakyReLU(0.2), torch.nn.Linear(32, 1)
).to(device)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True)
optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True)


@gapless.capture(device=device)
def train_step(real):
    fake = generator(torch.randn(len(real), 8, device=device))

    optimizer_d.zero_grad()
    loss_d = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = F.softplus(-critic(fake)).mean()
    loss_g.backward()
    optimizer_g.step()
    return {"critic": loss_d, "generator": loss_g}


for epoch in range(args.steps // len(loader)):
    losses = gapless.DeferredLoss(device)
    for real in gapless.prefetch(loader, device):
        losses.add(**train_step(real))
    critics, generators = losses.mean("critic"), losses.mean("generator")
    print(f"epoch {epoch}: critic {critics:.12f}, generator {generators:.12f}")
print(train_step.report)
