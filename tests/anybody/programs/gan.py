import os

import torch
import torch.nn as nn

os.makedirs("images", exist_ok=True)
torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(5, 16), nn.LeakyReLU(0.2), nn.BatchNorm1d(16), nn.Linear(16, 8), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
adversarial_loss = nn.BCELoss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
real = torch.randn(40, 12, 8)

for epoch in range(2):
    for i, real_imgs in enumerate(real):
        valid = torch.ones(real_imgs.size(0), 1, requires_grad=False)
        fake = torch.zeros(real_imgs.size(0), 1, requires_grad=False)
        optimizer_G.zero_grad()
        z = torch.randn(real_imgs.shape[0], 5)
        gen_imgs = generator(z)
        g_loss = adversarial_loss(discriminator(gen_imgs), valid)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(real_imgs), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()
        if i % 10 == 0:
            print(f"[Epoch {epoch}] [Batch {i}] [D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}]")
            torch.save(gen_imgs.data[:4], f"images/{epoch * 40 + i}.pt")
