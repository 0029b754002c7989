"""Checkpointed layers of both kinds, saved tensors on the host, accumulation over batches."""

import torch
from counting import report
from torch.utils.checkpoint import checkpoint

layers = torch.nn.ModuleList(
    torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    for _ in range(4)
).cuda()
optimizer = torch.optim.Adagrad(layers.parameters())
for step in range(4):
    x = torch.randn(32, 256, device="cuda", requires_grad=True)
    y = x
    for number, layer in enumerate(layers):
        y = checkpoint(layer, y, use_reentrant=bool(number % 2))
    with torch.autograd.graph.save_on_cpu():
        loss = y.pow(3).sum()
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
del x, y, loss
report(layers, optimizer)
