"""A small U-Net in channels_last with skip connections, group norms and interpolation."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from counting import report


def block(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(),
        nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.SiLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([block(3, 32), block(32, 64), block(64, 128)])
        self.up = nn.ModuleList([block(128 + 64, 64), block(64 + 32, 32)])
        self.transposed = nn.ConvTranspose2d(32, 32, 2, stride=2)
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for up in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = up(torch.cat([x, kept.pop()], 1))
        return self.out(F.avg_pool2d(self.transposed(x), 2))


model = UNet().to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    x = torch.rand(2, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        y = model(x)
        assert y.is_contiguous(memory_format=torch.channels_last), y.stride()
        loss = F.mse_loss(y.float(), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del x, y, loss
report(model, optimizer)
