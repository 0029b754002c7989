"""Optimizer state on the host, pinned buffers, copies on a stream of their own."""

import torch
from counting import report

model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).cuda()
master = [p.detach().float().cpu().pin_memory() for p in model.parameters()]
for tensor in master:
    tensor.requires_grad_()
optimizer = torch.optim.AdamW(master)
side = torch.cuda.Stream()
for _ in range(2):
    with torch.cuda.stream(side):
        x = torch.randn(64, 512).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    model(x).square().mean().backward()
    for mine, theirs in zip(master, model.parameters()):
        mine.grad = theirs.grad.to("cpu", non_blocking=True)
        theirs.grad = None
    torch.cuda.synchronize()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(master, model.parameters()):
            theirs.copy_(mine, non_blocking=True)
del x
torch.cuda.synchronize()
report(model)
