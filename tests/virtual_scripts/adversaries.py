"""A generator and a discriminator, each with an optimizer; gradient penalty through grad."""

import torch
import torch.nn as nn
from counting import report

generator = nn.Sequential(
    nn.ConvTranspose2d(16, 64, 4), nn.BatchNorm2d(64), nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
).cuda()  # fmt: skip
critic = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 32, 4, 2, 1)), nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64 * 16, 1),
).cuda()  # fmt: skip
makes = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
judges = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.999))
for _ in range(2):
    real = torch.randn(8, 1, 16, 16, device="cuda")
    fake = generator(torch.randn(8, 16, 1, 1, device="cuda"))
    between = torch.lerp(real, fake.detach(), torch.rand(8, 1, 1, 1, device="cuda"))
    between.requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
    judges.zero_grad()
    loss.backward()
    judges.step()
    loss = -critic(fake).mean()
    makes.zero_grad()
    loss.backward()
    makes.step()
del real, fake, between, slope, penalty, loss
report(generator, critic, makes, judges)
