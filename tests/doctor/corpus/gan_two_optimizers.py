"""A GAN: two optimizers, three numbers read a step."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("CASE_STEPS", 60))
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
bce = nn.BCEWithLogitsLoss()
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
d_losses, g_losses = [], []
for i in range(STEPS):  # step
    real = torch.randn(64, 32, device=device)
    label = torch.full((64, 1), 1.0, device=device)  # harmless: filled on the device
    opt_d.zero_grad()
    err_real = bce(D(real), label)
    err_real.backward()
    fake = G(torch.randn(64, 16, device=device))
    label.fill_(0.0)  # harmless: filled on the device
    output = D(fake.detach())
    err_fake = bce(output, label)
    err_fake.backward()
    D_G_z1 = output.mean().item()  # waits: item, static surely
    opt_d.step()
    opt_g.zero_grad()
    label.fill_(1.0)
    err_g = bce(D(fake), label)
    err_g.backward()
    opt_g.step()
    d_losses.append((err_real + err_fake).item())  # waits: item, static surely
    g_losses.append(err_g.item())  # waits: item, static surely
