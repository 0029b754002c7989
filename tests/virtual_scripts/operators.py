"""Operators that other scripts here don't use: CTC, FFT, linear algebra, bags, odd convolutions."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from counting import report

d = "cuda"
bag = nn.EmbeddingBag(100, 32, mode="mean").cuda()
bag(torch.randint(0, 100, (8, 5), device=d)).sum().backward()
scores = torch.randn(50, 4, 20, device=d, requires_grad=True)
targets = torch.randint(1, 20, (4, 10), device=d)
for lengths in (torch.full((4,), 10), (10, 9, 8, 7)):
    F.ctc_loss(scores.log_softmax(2), targets, torch.full((4,), 50), lengths).backward()
x = torch.randn(8, 3, 64, 64, device=d, requires_grad=True)
torch.fft.irfft2(torch.fft.rfft2(x)).abs().sum().backward()
F.grid_sample(x, torch.rand(8, 32, 32, 2, device=d) * 2 - 1, align_corners=False).sum().backward()
a = torch.randn(6, 20, 20, device=d)
positive = a @ a.mT + torch.eye(20, device=d)
torch.linalg.cholesky(positive), torch.linalg.eigh(positive), torch.linalg.svd(a)
torch.linalg.solve(a, a), torch.linalg.inv(a), torch.linalg.qr(a), torch.linalg.det(a)
layers = nn.ModuleList([
    nn.Conv1d(3, 8, 3), nn.Conv3d(3, 8, 3), nn.ConvTranspose3d(3, 8, 3),
    nn.Conv2d(8, 16, 3, groups=4), nn.Conv2d(8, 16, 3, groups=8),
]).cuda()  # fmt: skip
shapes = [(2, 3, 50), (2, 3, 9, 9, 9), (2, 3, 9, 9, 9), (2, 8, 9, 9), (2, 8, 9, 9)]
for layer, shape in zip(layers, shapes):
    layer(torch.randn(shape, device=d)).sum().backward()
F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward()
F.unfold(x, 3).sum().backward()
torch.cdist(x.flatten(2)[0], x.flatten(2)[1]).sum().backward()
torch.einsum("bchw,bdhw->bcd", x, x).sum().backward()
values = x.detach().flatten()
values.sort(), values.median(), values.quantile(0.5) if values.numel() < 1 << 24 else None
values.topk(5), values[values > 0], values.unique(), values.histc(), torch.var_mean(values)
torch.unique(torch.randint(0, 5, (10, 3), device=d), dim=0)
del scores, targets, a, positive, values
report(bag, x, layers)
