"""A mixture of experts: routing by topk, tokens gathered by nonzero and put back by index_add."""

import torch
from counting import report

gate = torch.nn.Linear(64, 4, bias=False)
experts = torch.nn.ModuleList(
    torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    for _ in range(4)
)
model = torch.nn.ModuleList([gate, experts]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(50, 64, device="cuda")
    weights, chosen = gate(x).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        token, slot = torch.where(chosen == number)
        if token.numel() == 0:
            continue
        out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
    loss = (out - x).square().mean()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
del x, weights, chosen, out, token, slot, loss
report(model, optimizer)
