"""A diffusion step: a noise schedule, time embeddings, attention in the middle, sampling."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from counting import report

betas = torch.linspace(1e-4, 0.02, 100, device="cuda")
kept = (1 - betas).cumprod(0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
        self.time = nn.Linear(64, 64)
        self.norm, self.qkv = nn.GroupNorm(8, 64), nn.Conv2d(64, 192, 1)

    def forward(self, x, t):
        rates = torch.exp(torch.arange(32, device=x.device) * (-math.log(10_000) / 32))
        angles = t[:, None].float() * rates
        h = self.first(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[..., None, None]
        q, k, v = self.qkv(self.norm(h)).flatten(2).transpose(1, 2)[:, None].chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).view_as(h)
        return self.last(F.silu(h))


model = Denoiser().cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for _ in range(2):
    x = torch.randn(4, 3, 16, 16, device="cuda")
    t = torch.randint(0, 100, (4,), device="cuda")
    noise = torch.randn_like(x)
    scale = kept[t][:, None, None, None]
    noisy = scale.sqrt() * x + (1 - scale).sqrt() * noise
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(noisy, t), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    x = torch.randn(1, 3, 16, 16, device="cuda")
    for step in reversed(range(0, 100, 25)):
        guess = model(x, torch.full((1,), step, device="cuda"))
        x = (x - betas[step] / (1 - kept[step]).sqrt() * guess) / (1 - betas[step]).sqrt()
del x, t, noise, scale, noisy, loss, guess
report(model, optimizer, betas, kept)
