"""A decoder with padding masks and causal masks, of truth values and of numbers."""

import torch
import torch.nn.functional as F
from counting import report

heads, width = 4, 64
model = torch.nn.ModuleDict({n: torch.nn.Linear(256, 256) for n in ("q", "k", "v", "o")}).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(2, 37, 256, device="cuda")
    lengths = torch.tensor([37, 20], device="cuda")
    padding = torch.arange(37, device="cuda")[None] < lengths[:, None]
    causal = torch.ones(37, 37, dtype=torch.bool, device="cuda").tril()
    mask = padding[:, None, None] & causal
    if step == 1:
        mask = torch.zeros(mask.shape, device="cuda").masked_fill(~mask, float("-inf"))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step != 2):
        q, k, v = (model[n](x).view(2, 37, heads, width).transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype) if step else mask)
        loss = model["o"](y.transpose(1, 2).flatten(2)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del x, lengths, padding, causal, mask, q, k, v, y, loss
report(model, optimizer)
